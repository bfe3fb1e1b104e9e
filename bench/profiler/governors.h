// The frequency governors of a board's cores: which there are, and another one for as long as it is
// measured. Neighbour: profiler.cc measures its overhead under each of LM-Meter's three (its
// section 4.4).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace withy::bench {

// The destructor brings back the governors that the constructor found. Not thread-safe.
class Governors {
 public:
  // `root`: the kernel's folder of frequency policies, policy0, policy1, ...
  explicit Governors(const std::string& root = "/sys/devices/system/cpu/cpufreq");
  ~Governors();
  Governors(const Governors&) = delete;
  Governors& operator=(const Governors&) = delete;

  // Those of `wanted` that all cores offer, in that order. None where the board has no governors.
  std::vector<std::string> Offered(std::span<const std::string_view> wanted) const;
  // Of the first policy when this object was made; empty: none.
  const std::string& first() const { return first_; }
  // Sets all cores. Errors: PERMISSION_DENIED naming the file that cannot be written.
  absl::Status Set(std::string_view governor);

 private:
  struct Policy {
    std::string file;  // that says and sets its governor
    std::string found;
    std::vector<std::string> offered;
  };

  std::vector<Policy> policies_;
  std::string first_;
  bool changed_ = false;
};

}  // namespace withy::bench
