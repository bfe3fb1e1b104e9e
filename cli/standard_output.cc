#include "cli/standard_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace withy::cli {

StandardOutput::StandardOutput(int fd) : fd_(fd), buffer_(1 << 14) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

StandardOutput::~StandardOutput() { WriteAll(); }

absl::Status StandardOutput::Finish() {
  if (WriteAll()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "cannot write to standard output: ", std::strerror(error_), "; the output is incomplete"));
}

StandardOutput::int_type StandardOutput::overflow(int_type c) {
  if (!WriteAll()) return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof())) {
    *pptr() = traits_type::to_char_type(c);
    pbump(1);
  }
  return traits_type::not_eof(c);
}

int StandardOutput::sync() { return WriteAll() ? 0 : -1; }

bool StandardOutput::WriteAll() {
  const char* from = pbase();
  while (error_ == 0 && from < pptr()) {
    const ssize_t written = write(fd_, from, static_cast<size_t>(pptr() - from));
    if (written >= 0) {
      from += written;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  return error_ == 0;
}

}  // namespace withy::cli
