// A GET over HTTP/1.1 to this machine, for end-to-end tests.
#pragma once

#include <string>

namespace withy::e2e {

// The body of the answer of 127.0.0.1:PORT (`address` is "127.0.0.1:PORT") with status 200; "" on
// any failure.
std::string HttpGet(const std::string& address, const std::string& target);

}  // namespace withy::e2e
