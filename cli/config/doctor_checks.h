// What withyctl doctor looks at without the service: configuration, state, disk. Neighbours:
// doctor.cc asks systemd and the service, and prints.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace withy::cli {

struct Finding {
  bool error = false;  // else a note: the service works
  std::string what;
  std::string remedy;
};

// Errors of the configuration, and files that it names and that are not there or cannot be read by
// this user.
std::vector<Finding> LookAtConfig(const CheckedConfig& checked);

// The state directory: whether it is there, has room, and holds a database and its key that go
// together; packed files of models that the configuration does not name.
std::vector<Finding> LookAtState(const v1::Config& config);

// One unit, from the lines `KEY=VALUE` of `systemctl show`. Pure.
std::vector<Finding> LookAtUnit(std::string_view unit, std::string_view shown);

}  // namespace withy::cli
