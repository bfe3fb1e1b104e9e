#include "tests/e2e/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>

#include "base/unique_fd.h"

namespace withy::e2e {

std::string HttpGet(const std::string& address, const std::string& target) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "";
  // HTTP/1.0, so that the answer is neither chunked nor kept open.
  const std::string request = "GET " + target + " HTTP/1.0\r\nHost: " + address + "\r\n\r\n";
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return "";
  }
  std::string answer;
  char buffer[65536];
  for (ssize_t n; (n = recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  const size_t body = answer.find("\r\n\r\n");
  if (answer.find(" 200 ") != 8 || body == std::string::npos) return "";
  return answer.substr(body + 4);
}

}  // namespace withy::e2e
