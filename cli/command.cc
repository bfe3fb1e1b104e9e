#include "cli/command.h"

#include <iostream>

#include "base/strings.h"
#include "cli/terminal_text.h"

namespace withy::cli {

int Fail(const absl::Status& status) {
  std::cerr << "withyctl: " << Printable(ToStd(status.message())) << " ["
            << absl::StatusCodeToString(status.code()) << "]\n";
  return kExitFailed;
}

int FailUsage(std::string_view message) {
  std::cerr << "withyctl: " << Printable(message) << " (--help explains the command)\n";
  return kExitUsage;
}

std::vector<Flag> WithConnection(std::vector<Flag> flags) {
  for (Flag& flag : ConnectionFlags()) flags.push_back(std::move(flag));
  return flags;
}

std::vector<Flag> ConnectionFlags() {
  return {
      {"address", "ADDRESS",
       "unix:PATH or HOST:PORT of the service (WITHY_ADDRESS; default: the configuration's)"},
      {"app", "NAME",
       "use the token that `apps bind NAME` stored (default: of the app bound last)"},
      {"token", "TOKEN", "use this token (WITHY_TOKEN)"},
      {"ca", "FILE", "speak TLS; PEM file of the CA of the service's certificate (WITHY_CA)"},
      {"cert", "FILE", "PEM file of the app's certificate, with --key; no token is needed then"},
      {"key", "FILE", "PEM file of its private key"},
      {"config", "FILE", "the service's configuration (default /etc/withy/withy.textproto)"}};
}

}  // namespace withy::cli
