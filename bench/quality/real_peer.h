// The independent runtime that a real model is compared with: bench/quality/real_peer.py in a
// process of its own, asked by a line of JSON and answering with one. Neighbours: real.cc compares.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy::bench {

// What a prompt of messages holds.
struct ChatTurn {
  std::string role;
  std::string content;
};
using Chat = std::vector<ChatTurn>;

// The most likely token at each place of the windows but the last, and the log-probability of the
// token that follows it.
struct Predictions {
  std::vector<int32_t> top;
  std::vector<double> logprobs;
};

// Not thread-safe. All methods fail with INTERNAL naming the script and its error.
class RealPeer {
 public:
  // Starts `python` with the script on a model. It has what hello says; each part may be missing.
  static absl::StatusOr<std::unique_ptr<RealPeer>> Start(const std::string& python,
                                                         const std::string& script,
                                                         const std::string& model, int threads);
  ~RealPeer();

  // Empty: there is none, and why_none() says why.
  const std::string& runtime() const { return runtime_; }
  const std::string& jinja2() const { return jinja2_; }
  const std::string& why_none() const { return why_none_; }

  absl::StatusOr<std::vector<std::string>> Render(const std::string& chat_template,
                                                  const std::vector<Chat>& chats);
  absl::StatusOr<std::vector<std::vector<int32_t>>> Tokens(const std::vector<std::string>& texts);
  absl::StatusOr<Predictions> Predict(const std::vector<std::vector<int32_t>>& windows);
  struct Speed {
    double prefill_tok_s = 0;
    double decode_tok_s = 0;
  };
  absl::StatusOr<Speed> MeasureSpeed(int32_t prompt, int32_t generate);

 private:
  RealPeer() = default;
  absl::StatusOr<nlohmann::json> Ask(const nlohmann::json& request);

  pid_t pid_ = -1;
  UniqueFd to_, from_;
  std::string read_;  // of the next line
  std::string runtime_, jinja2_, why_none_;
};

}  // namespace withy::bench
