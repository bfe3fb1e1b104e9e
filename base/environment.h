// Variables of the process's environment.
#pragma once

#include <cstdlib>
#include <string>

namespace withy {

// The variable's value; "" where it is not set.
inline std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace withy
