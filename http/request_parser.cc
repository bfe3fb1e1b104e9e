#include "http/request_parser.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace withy::http {
namespace {

// A line with a chunk's size is this long at most. Extensions of all chunks share the head's limit.
constexpr size_t kMaxChunkLine = 4096;

bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenCharacter);
}

bool IsControl(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

std::string_view TrimSpaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Digits alone; a number that is too large for 64 bits is the largest.
std::optional<uint64_t> ReadDigits(std::string_view text, uint64_t base) {
  if (text.empty()) return std::nullopt;
  uint64_t value = 0;
  bool overflow = false;
  for (const char c : text) {
    const int digit = HexDigit(c);
    if (digit < 0 || static_cast<uint64_t>(digit) >= base) return std::nullopt;
    overflow = overflow || value > (UINT64_MAX - static_cast<uint64_t>(digit)) / base;
    value = value * base + static_cast<uint64_t>(digit);
  }
  return overflow ? UINT64_MAX : value;
}

// "%41" -> "A". False: an escape is not whole, or stands for a zero byte.
bool Unescape(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      *out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return false;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return false;
    *out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

}  // namespace

const std::string* RequestHead::Find(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

void RequestParser::Fail(int status, std::string message) {
  state_ = State::kFailed;
  failure_ = {status, std::move(message)};
}

size_t RequestParser::Feed(std::string_view bytes) {
  const State began = state_;
  size_t used = 0;
  while (used < bytes.size() && state_ == began &&
         (state_ == State::kHead || state_ == State::kBody)) {
    const std::string_view rest = bytes.substr(used);
    used += part_ == Part::kData ? TakeData(rest) : TakeLine(rest);
  }
  return used;
}

size_t RequestParser::TakeData(std::string_view bytes) {
  const size_t taken = static_cast<size_t>(std::min<uint64_t>(data_left_, bytes.size()));
  body_.append(bytes.substr(0, taken));
  data_left_ -= taken;
  if (data_left_ > 0) return taken;
  if (head_.chunked) {
    part_ = Part::kChunkEnd;
  } else {
    state_ = State::kDone;
  }
  return taken;
}

size_t RequestParser::TakeLine(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  const size_t taken = end == std::string_view::npos ? bytes.size() : end + 1;
  const bool chunk = part_ == Part::kChunkSize || part_ == Part::kChunkEnd;
  const size_t room = chunk ? kMaxChunkLine - line_.size() : limits_.head_bytes - line_bytes_;
  if (taken > room) {
    if (InHead()) {
      Fail(431, absl::StrCat("the request's line and headers are longer than ", limits_.head_bytes,
                             " bytes: send fewer or shorter ones"));
    } else {
      Fail(400, "the request's body: a chunk's size or a trailer is too long");
    }
    return taken;
  }
  if (!chunk) line_bytes_ += taken;
  line_.append(bytes.substr(0, taken));
  if (end == std::string_view::npos) return taken;
  std::string line = std::move(line_);
  line_.clear();
  line.pop_back();
  if (!line.empty() && line.back() == '\r') {
    line.pop_back();
  } else if (!InHead()) {  // where servers differ about it, the body's end is at stake
    Fail(400, "the request's body: a line of its chunks does not end with CR LF");
    return taken;
  }
  if (std::any_of(line.begin(), line.end(), IsControl)) {
    Fail(400, absl::StrCat("the request has a control character in a ",
                           InHead() ? "header" : "line of its chunks"));
    return taken;
  }
  OnLine(line);
  return taken;
}

void RequestParser::OnLine(std::string_view line) {
  switch (part_) {
    case Part::kRequestLine:
      // Clients of old send an empty line behind a body.
      if (!line.empty()) OnRequestLine(line);
      return;
    case Part::kHeader:
      return line.empty() ? OnHeadEnd() : OnHeader(line);
    case Part::kChunkSize:
      return OnChunkSize(line);
    case Part::kChunkEnd:
      part_ = Part::kChunkSize;
      if (!line.empty()) Fail(400, "the request's body: a chunk is longer than its size");
      return;
    case Part::kTrailer:  // ignored
      if (line.empty()) state_ = State::kDone;
      return;
    case Part::kData:
      return;
  }
}

void RequestParser::OnRequestLine(std::string_view line) {
  part_ = Part::kHeader;
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end <= method_end + 1) {
    return Fail(400, "the request's line is not METHOD TARGET HTTP/1.1");
  }
  head_.method = std::string(line.substr(0, method_end));
  const std::string_view version = line.substr(target_end + 1);
  const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const bool http = version.size() == 8 && version.starts_with("HTTP/") && version[6] == '.' &&
                    absl::ascii_isdigit(static_cast<unsigned char>(version[5])) &&
                    absl::ascii_isdigit(static_cast<unsigned char>(version[7]));
  if (!IsToken(head_.method) || !http || target.find_first_of(" \t") != std::string_view::npos) {
    return Fail(400, "the request's line is not METHOD TARGET HTTP/1.1");
  }
  if (version[5] != '1') return Fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  head_.http_1_0 = version[7] == '0';
  if (!ReadTarget(target)) Fail(400, "the request's target is no path of an URL");
}

bool RequestParser::ReadTarget(std::string_view target) {
  if (target == "*") {
    head_.path = "*";
    return head_.method == "OPTIONS";
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(ToAbsl(target), ToAbsl(scheme))) continue;
    const size_t path = target.find_first_of("/?", scheme.size());
    target = path == std::string_view::npos ? "/" : target.substr(path);
    if (target.front() == '?') target = "/";
    break;
  }
  return target.front() == '/' &&
         Unescape(target.substr(0, target.find_first_of("?#")), &head_.path);
}

void RequestParser::OnHeader(std::string_view line) {
  if (line.front() == ' ' || line.front() == '\t') {
    return Fail(400, "a header goes on in a second line: send it in one");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) {
    return Fail(400, "a header is not NAME: VALUE");
  }
  head_.headers.emplace_back(absl::AsciiStrToLower(ToAbsl(line.substr(0, colon))),
                             std::string(TrimSpaces(line.substr(colon + 1))));
}

void RequestParser::OnHeadEnd() {
  const auto hosts = std::count_if(head_.headers.begin(), head_.headers.end(),
                                   [](const auto& header) { return header.first == "host"; });
  if (hosts > 1 || (hosts == 0 && !head_.http_1_0)) {
    return Fail(400, absl::StrCat("the request has ", hosts == 0 ? "no" : "more than one",
                                  " header Host: HTTP/1.1 wants one"));
  }
  if (!ReadLength() || !ReadCoding() || !ReadExpectation()) return;
  ReadConnection();
  line_bytes_ = 0;
  if (!head_.chunked && head_.content_length.value_or(0) == 0) {
    state_ = State::kDone;
    return;
  }
  state_ = State::kBody;
  part_ = head_.chunked ? Part::kChunkSize : Part::kData;
  data_left_ = head_.content_length.value_or(0);
}

bool RequestParser::ReadLength() {
  for (const auto& [name, value] : head_.headers) {
    if (name != "content-length") continue;
    // A list of the same number is what proxies make of two headers.
    for (const absl::string_view one : absl::StrSplit(value, ',')) {
      const std::optional<uint64_t> length = ReadDigits(TrimSpaces(ToStd(one)), 10);
      if (!length || (head_.content_length && *head_.content_length != *length)) {
        Fail(400, "the header Content-Length is not one number");
        return false;
      }
      head_.content_length = length;
    }
  }
  if (head_.content_length.value_or(0) <= limits_.body_bytes) return true;
  Fail(413, absl::StrCat("the request's body has ", *head_.content_length, " bytes: at most ",
                         limits_.body_bytes, " are read"));
  return false;
}

bool RequestParser::ReadCoding() {
  std::vector<std::string> codings;
  for (const auto& [name, value] : head_.headers) {
    if (name != "transfer-encoding") continue;
    for (const absl::string_view one : absl::StrSplit(value, ',')) {
      codings.push_back(absl::AsciiStrToLower(ToAbsl(TrimSpaces(ToStd(one)))));
    }
  }
  if (codings.empty()) return true;
  if (head_.content_length || head_.http_1_0 || codings.back() != "chunked" ||
      std::count(codings.begin(), codings.end(), "chunked") > 1) {
    Fail(400,
         "the header Transfer-Encoding stands beside Content-Length, or is not the one word "
         "chunked: where the body ends is not certain");
    return false;
  }
  if (codings.size() > 1) {
    Fail(501, absl::StrCat("the transfer coding ", codings.front(),
                           " is not known: send the body as it is, or chunked"));
    return false;
  }
  head_.chunked = true;
  return true;
}

bool RequestParser::ReadExpectation() {
  if (head_.http_1_0) return true;
  for (const auto& [name, value] : head_.headers) {
    if (name != "expect") continue;
    if (!absl::EqualsIgnoreCase(value, "100-continue")) {
      Fail(417, absl::StrCat("the expectation \"", value.substr(0, 64),
                             "\" is not known: only 100-continue is"));
      return false;
    }
    head_.expects_continue = true;
  }
  return true;
}

void RequestParser::ReadConnection() {
  head_.closes = head_.http_1_0;
  for (const auto& [name, value] : head_.headers) {
    if (name != "connection") continue;
    for (const absl::string_view one : absl::StrSplit(value, ',')) {
      head_.closes =
          head_.closes || absl::EqualsIgnoreCase(ToAbsl(TrimSpaces(ToStd(one))), "close");
    }
  }
}

void RequestParser::OnChunkSize(std::string_view line) {
  // Behind the size there may be spaces, and extensions, which a server ignores.
  const size_t end = std::min(line.find_first_of("; \t"), line.size());
  const std::string_view extension = TrimSpaces(line.substr(end));
  const std::optional<uint64_t> size = ReadDigits(line.substr(0, end), 16);
  if (!size || (!extension.empty() && extension.front() != ';')) {
    return Fail(400, "the request's body: a chunk does not begin with its size");
  }
  line_bytes_ += line.size() - end;
  if (line_bytes_ > limits_.head_bytes) {
    return Fail(400, "the request's body: its chunks' extensions are too long");
  }
  if (*size > limits_.body_bytes - body_.size()) {
    return Fail(413, absl::StrCat("the request's body is longer than ", limits_.body_bytes,
                                  " bytes, which are read at most"));
  }
  data_left_ = *size;
  part_ = *size == 0 ? Part::kTrailer : Part::kData;
  if (*size == 0) line_bytes_ = 0;
}

std::string RequestParser::Missing() const {
  if (head_.chunked)
    return absl::StrCat("its last chunk did not come behind ", body_.size(), " bytes");
  return absl::StrCat(body_.size(), " of ", head_.content_length.value_or(0), " bytes came");
}

}  // namespace withy::http
