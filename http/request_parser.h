// Requests of HTTP/1.1 (RFC 9112) out of bytes as they arrive. Pure: no sockets, no clock.
// Neighbours: server.h feeds it; tests/fuzz feeds it anything.
//
// What another server on the way might read otherwise is refused, since requests follow one another
// on a connection: two lengths, a length beside chunks, spaces before a colon, folded headers,
// control characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace withy::http {

struct Limits {
  size_t head_bytes = 32 << 10;  // of the request's line and headers; of trailers, too
  uint64_t body_bytes = 4 << 20;
};

// Why a request is not answered: a status of HTTP, and words for people.
struct Failure {
  int status = 0;
  std::string message;
};

struct RequestHead {
  std::string method;
  std::string path;  // decoded, without the query: "/v1/models/a b"
  bool http_1_0 = false;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case

  std::optional<uint64_t> content_length;  // unset: none was given
  bool chunked = false;
  bool expects_continue = false;  // the client waits for 100 (Continue) before it sends its body
  // No request follows on the connection: the client says so, or speaks HTTP/1.0.
  bool closes = false;

  // The first header of this name in lower case; null: there is none.
  const std::string* Find(std::string_view name) const;
};

// For one request. Not thread-safe.
class RequestParser {
 public:
  enum class State { kHead, kBody, kDone, kFailed };

  explicit RequestParser(const Limits& limits) : limits_(limits) {}

  // Takes bytes, and returns how many of them belong to the present state: it stops where the state
  // changes, so that the head can be judged before the body is read.
  size_t Feed(std::string_view bytes);

  State state() const { return state_; }
  // Whether a request has begun; an empty line before one does not count.
  bool begun() const { return part_ != Part::kRequestLine || !line_.empty(); }
  // As far as it has arrived.
  const RequestHead& head() const { return head_; }
  const std::string& body() const { return body_; }
  std::string TakeBody() { return std::move(body_); }
  // In state kFailed.
  const Failure& failure() const { return failure_; }
  // What is missing of the body, for people: "3 of 10 bytes came".
  std::string Missing() const;

 private:
  enum class Part { kRequestLine, kHeader, kData, kChunkSize, kChunkEnd, kTrailer };

  size_t TakeLine(std::string_view bytes);
  size_t TakeData(std::string_view bytes);
  void OnLine(std::string_view line);
  void OnRequestLine(std::string_view line);
  bool ReadTarget(std::string_view target);
  void OnHeader(std::string_view line);
  void OnHeadEnd();
  bool ReadLength();
  bool ReadCoding();
  bool ReadExpectation();
  void ReadConnection();
  void OnChunkSize(std::string_view line);
  bool InHead() const { return part_ == Part::kRequestLine || part_ == Part::kHeader; }
  void Fail(int status, std::string message);

  Limits limits_;
  State state_ = State::kHead;
  Part part_ = Part::kRequestLine;
  RequestHead head_;
  std::string line_;        // that has begun
  size_t line_bytes_ = 0;   // of all lines of the head; of chunks beyond their sizes; of trailers
  uint64_t data_left_ = 0;  // of the body, or of the chunk
  std::string body_;
  Failure failure_;
};

}  // namespace withy::http
