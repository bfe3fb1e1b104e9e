// Standard output that knows whether all of it could be written: to a full disk or a closed
// descriptor a stream alone fails in silence. Neighbours: main.cc puts it under std::cout.
#pragma once

#include <streambuf>
#include <vector>

#include "absl/status/status.h"

namespace withy::cli {

// Writes to a file descriptor in pieces. Nothing more is written after the first failure. Not
// thread-safe.
class StandardOutput final : public std::streambuf {
 public:
  explicit StandardOutput(int fd);
  ~StandardOutput() override;

  // Writes what is still kept. Errors: that of the first write that failed, with the remedy.
  absl::Status Finish();

 protected:
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  bool WriteAll();

  const int fd_;
  std::vector<char> buffer_;
  int error_ = 0;  // errno of the first failure
};

}  // namespace withy::cli
