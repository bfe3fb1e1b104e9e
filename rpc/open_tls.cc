#include "rpc/open_tls.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "withy/v1/config.pb.h"

namespace withy::rpc {

absl::StatusOr<TcpTls> OpenTls(const v1::Config& config, TlsSource::OnChange on_change) {
  TcpTls tls;
  if (config.tls().certificate_file().empty()) return tls;
  tls.on_loopback = config.tls().on_loopback();
  const auto tell = [on_change = std::move(on_change)](const absl::Status& problem,
                                                       absl::Time expires) {
    if (problem.ok()) {
      spdlog::info("TLS: the certificate in force expires on {}",
                   absl::FormatTime("%Y-%m-%d", expires, absl::UTCTimeZone()));
    } else if (expires > absl::InfinitePast()) {
      spdlog::error("TLS: the certificate that was read before stays in force: {}",
                    std::string(problem.message()));
    }
    // Without a certificate in force the process does not start.
    if (on_change && expires > absl::InfinitePast()) on_change(problem, expires);
  };
  WITHY_ASSIGN_OR_RETURN(tls.source,
                         TlsSource::Open({.certificate = config.tls().certificate_file(),
                                          .key = config.tls().key_file(),
                                          .client_ca = config.tls().client_ca_file()},
                                         tell));
  return tls;
}

}  // namespace withy::rpc
