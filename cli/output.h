// Output formats of withyctl: JSON messages, tables, sizes, and a progress bar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace google::protobuf {
class Message;
}

namespace withy::cli {

// One line, .proto field names, defaults included.
std::string ToJson(const google::protobuf::Message& message);

// Pads columns to their widest cell in terminal columns; the first row is the header. Cells may
// contain foreign text, which is kept on one line (terminal_text.h).
std::string Table(const std::vector<std::vector<std::string>>& rows);

// "1.2 GiB"
std::string Bytes(uint64_t bytes);
// "3 min ago", from Unix seconds.
std::string Ago(int64_t unix_s, int64_t now_unix_s);
// "42 s", "3.5 h"
std::string Seconds(double seconds);

// Drawn on stderr, only on a terminal, after the first second. One thread at a time.
class ProgressBar {
 public:
  explicit ProgressBar(const Clock& clock);
  ~ProgressBar();  // removes the bar
  void Update(double done, std::string_view what);

 private:
  const Clock& clock_;
  const bool terminal_;
  const int64_t started_ns_;
  int64_t drawn_ns_ = 0;
};

}  // namespace withy::cli
