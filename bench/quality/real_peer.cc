#include "bench/quality/real_peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::bench {
namespace {

using nlohmann::json;

std::string TextOf(const json& answer, const char* key) {
  const auto found = answer.find(key);
  return found != answer.end() && found->is_string() ? found->get<std::string>() : "";
}

// `answer[key]` as a T. Errors: INTERNAL if it is none.
template <typename T>
absl::StatusOr<T> Field(const json& answer, const char* key) {
  try {
    return answer.at(key).get<T>();
  } catch (const json::exception& error) {
    return absl::InternalError(absl::StrCat("real_peer.py: ", key, ": ", error.what()));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<RealPeer>> RealPeer::Start(const std::string& python,
                                                          const std::string& script,
                                                          const std::string& model, int threads) {
  int down[2], up[2];
  if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) return ErrnoError("pipe");
  std::unique_ptr<RealPeer> peer(new RealPeer());
  const UniqueFd child_in(down[0]), child_out(up[1]);
  peer->to_ = UniqueFd(down[1]);
  peer->from_ = UniqueFd(up[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_out.get(), STDOUT_FILENO);
  std::string count = std::to_string(threads);
  std::vector<std::string> words = {python, script, model, count};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int failed =
      posix_spawnp(&peer->pid_, python.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    peer->pid_ = -1;
    errno = failed;
    return ErrnoError("start " + python);
  }
  WITHY_ASSIGN_OR_RETURN(const json hello, peer->Ask({{"what", "hello"}}));
  peer->runtime_ = TextOf(hello, "runtime");
  peer->jinja2_ = TextOf(hello, "jinja2");
  peer->why_none_ = TextOf(hello, "why");
  return peer;
}

RealPeer::~RealPeer() {
  if (pid_ < 0) return;
  to_ = UniqueFd();
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<json> RealPeer::Ask(const json& request) {
  const std::string line = request.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t count = write(to_.get(), line.data() + sent, line.size() - sent);
    if (count < 0 && errno != EINTR) return ErrnoError("write to real_peer.py");
    if (count > 0) sent += static_cast<size_t>(count);
  }
  size_t end = std::string::npos;
  while ((end = read_.find('\n')) == std::string::npos) {
    char bytes[1 << 16];
    const ssize_t count = read(from_.get(), bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return absl::InternalError("real_peer.py has ended; what it printed says why");
    }
    read_.append(bytes, static_cast<size_t>(count));
  }
  const json answer = json::parse(read_.substr(0, end), nullptr, /*allow_exceptions=*/false);
  read_.erase(0, end + 1);
  if (!answer.is_object()) return absl::InternalError("real_peer.py does not answer in JSON");
  if (const std::string error = TextOf(answer, "error"); !error.empty()) {
    return absl::InternalError(absl::StrCat("real_peer.py: ", error));
  }
  return answer;
}

absl::StatusOr<std::vector<std::string>> RealPeer::Render(const std::string& chat_template,
                                                          const std::vector<Chat>& chats) {
  json told = json::array();
  for (const Chat& chat : chats) {
    json turns = json::array();
    for (const ChatTurn& turn : chat) {
      turns.push_back({{"role", turn.role}, {"content", turn.content}});
    }
    told.push_back(std::move(turns));
  }
  WITHY_ASSIGN_OR_RETURN(
      const json answer,
      Ask({{"what", "render"}, {"template", chat_template}, {"chats", std::move(told)}}));
  return Field<std::vector<std::string>>(answer, "texts");
}

absl::StatusOr<std::vector<std::vector<int32_t>>> RealPeer::Tokens(
    const std::vector<std::string>& texts) {
  WITHY_ASSIGN_OR_RETURN(const json answer, Ask({{"what", "tokens"}, {"texts", texts}}));
  return Field<std::vector<std::vector<int32_t>>>(answer, "ids");
}

absl::StatusOr<Predictions> RealPeer::Predict(const std::vector<std::vector<int32_t>>& windows) {
  WITHY_ASSIGN_OR_RETURN(const json answer, Ask({{"what", "predict"}, {"windows", windows}}));
  Predictions predictions;
  WITHY_ASSIGN_OR_RETURN(predictions.top, Field<std::vector<int32_t>>(answer, "top"));
  WITHY_ASSIGN_OR_RETURN(predictions.logprobs, Field<std::vector<double>>(answer, "logprobs"));
  return predictions;
}

absl::StatusOr<RealPeer::Speed> RealPeer::MeasureSpeed(int32_t prompt, int32_t generate) {
  WITHY_ASSIGN_OR_RETURN(const json answer,
                         Ask({{"what", "speed"}, {"prompt", prompt}, {"generate", generate}}));
  Speed speed;
  WITHY_ASSIGN_OR_RETURN(speed.prefill_tok_s, Field<double>(answer, "prefill_tok_s"));
  WITHY_ASSIGN_OR_RETURN(speed.decode_tok_s, Field<double>(answer, "decode_tok_s"));
  return speed;
}

}  // namespace withy::bench
