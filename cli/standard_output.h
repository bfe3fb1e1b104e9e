// Standard output that reports failed writes: on a full disk or a closed descriptor a plain stream
// fails silently. Neighbour: main.cc installs it under std::cout.
#pragma once

#include <streambuf>
#include <vector>

#include "absl/status/status.h"

namespace withy::cli {

// Buffers output to a file descriptor. Writes nothing after the first failure. Not thread-safe.
class StandardOutput final : public std::streambuf {
 public:
  explicit StandardOutput(int fd);
  ~StandardOutput() override;

  // Writes the buffered rest. Errors: that of the first failed write, with the remedy.
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
