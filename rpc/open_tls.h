// Opens the TLS that a process's configuration asks for, and keeps the log informed of its files.
// Neighbours: tls_credentials.h makes gRPC's credentials of it, http/ takes it as it is.
#pragma once

#include "absl/status/statusor.h"
#include "base/tls/tls_files.h"

namespace withy::v1 {
class Config;
}

namespace withy::rpc {

// Without tls.certificate_file: no TLS. `on_change` is told what the log is told. Errors: as
// ReadTlsFiles.
absl::StatusOr<TcpTls> OpenTls(const v1::Config& config, TlsSource::OnChange on_change = {});

}  // namespace withy::rpc
