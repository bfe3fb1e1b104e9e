// The words of HTTP's statuses (RFC 9110).
#pragma once

#include <string_view>

namespace withy::http {

// "Not Found" of 404; empty: a status that nobody here sends.
std::string_view ReasonOf(int status);

}  // namespace withy::http
