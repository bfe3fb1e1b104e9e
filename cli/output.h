// How withyctl prints: JSON of messages, tables, sizes, and a progress bar.
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

// One line, field names as in the .proto, defaults written out.
std::string ToJson(const google::protobuf::Message& message);

// Columns padded to their widest cell, as a terminal shows them; the first row is the head. Cells
// may hold foreign text: each stays in its line (terminal_text.h).
std::string Table(const std::vector<std::vector<std::string>>& rows);

// "1.2 GiB"
std::string Bytes(uint64_t bytes);
// "3 min ago", from Unix seconds.
std::string Ago(int64_t unix_s, int64_t now_unix_s);
// "42 s", "3.5 h"
std::string Seconds(double seconds);

// On stderr, only when that is a terminal, from the second second on. One thread at a time.
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
