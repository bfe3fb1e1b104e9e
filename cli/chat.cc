// withyctl chat: a conversation in a context. Ctrl-C cancels the answer, not the program.
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <mutex>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/prompt_flags.h"
#include "cli/stats.h"
#include "cli/terminal_text.h"
#include "cli/utf8.h"

namespace withy::cli {
namespace {

// Handles SIGINT on its own thread. All other threads must be started later, so that they do not
// receive the signal.
class InterruptWatcher {
 public:
  InterruptWatcher() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { Watch(); });
  }
  ~InterruptWatcher() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }

  // Sets the answer that Ctrl-C cancels; null = none.
  void SetAnswer(AnswerCancel* answer) {
    const std::lock_guard lock(mutex_);
    answer_ = answer;
  }

 private:
  void Watch() {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && signal == SIGINT) {
      const std::lock_guard lock(mutex_);
      if (answer_ != nullptr) {
        answer_->Cancel();
      } else {
        std::cerr << "\n(/quit or Ctrl-D leaves)\n> " << std::flush;
      }
    }
  }

  sigset_t signals_{};
  std::mutex mutex_;
  AnswerCancel* answer_ = nullptr;
  std::thread thread_;
};

constexpr absl::Duration kChatTimeout = absl::Hours(1);

constexpr char kHelp[] =
    "/slo ttft_ms=200 tpot_ms=10   require this speed from now on (ttft_ms, tpot_ms, ttft_ratio, "
    "tpot_ratio,\n"
    "                              end_to_end_ms; add `strict` to refuse calls that would be "
    "late)\n"
    "/slo off                      no speed required: the best answer\n"
    "/speculation SOURCE           draft tokens by off, lookup, prefix, draft, head or auto from "
    "now on\n"
    "/tool TEXT                    answer the tool that the model called\n"
    "/stats                        show or hide predicted and measured latency\n"
    "/new                          start a new context with the next message\n"
    "/context                      print the context's id, for --context later\n"
    "/help                         this list\n"
    "/quit                         leave\n"
    "To send a message that begins with /, type a space first.\n"
    "Ctrl-C cancels an answer; its text so far stays in the context.\n";

// Reads a line without its end. Returns false at the end of input, or (`too_long`) if the line
// exceeds the longest prompt.
bool ReadLine(std::istream& in, std::string* line, bool* too_long) {
  line->clear();
  for (char c = 0; in.get(c);) {
    if (c == '\n') return true;
    if (line->size() == kMaxPromptBytes) {
      *too_long = true;
      return false;
    }
    line->push_back(c);
  }
  return !line->empty();
}

class Chat {
 public:
  Chat(Client& client, InterruptWatcher& watcher, const Args& args, v1::GenerateRequest settings,
       absl::Duration timeout)
      : client_(client),
        watcher_(watcher),
        args_(args),
        request_(std::move(settings)),
        timeout_(timeout),
        stats_(args.Has("stats")) {
    request_.set_report_progress(isatty(STDERR_FILENO) != 0);
  }

  // Fails at once, not after the first message, if the service, the token or --context is invalid.
  absl::Status Start() {
    if (!request_.context_id().empty()) {
      v1::GetContextRequest get;
      get.set_context_id(request_.context_id());
      return client_.GetContext(get).status();
    }
    v1::ListContextsRequest least;
    least.set_page_size(1);
    return client_.ListContexts(least).status();
  }

  void Loop() {
    std::string line;
    const bool terminal = isatty(STDIN_FILENO) != 0;
    bool too_long = false;
    if (terminal) std::cerr << ContextText() << "; /help lists the commands\n";
    while (true) {
      if (terminal) std::cerr << "> " << std::flush;
      if (!std::cout || !ReadLine(std::cin, &line, &too_long)) break;
      if (line.empty()) continue;
      if (line[0] == '/') {
        if (!Do(line)) break;
      } else {
        Answer(line);
      }
    }
    if (too_long) {
      Report(absl::InvalidArgumentError(
          absl::StrCat("a line has more than ", kMaxPromptBytes, " bytes, the longest prompt")));
    }
    if (terminal) std::cerr << "\n";
    if (terminal && !request_.context_id().empty()) {
      std::cerr << "`withyctl chat --context " << request_.context_id() << "` goes on\n";
    }
  }

  bool failed() const { return failed_; }

 private:
  std::string ContextText() const {
    return request_.context_id().empty() ? "a new context begins with the next message"
                                         : "context " + request_.context_id();
  }

  // Creates a context only when needed: an unused one would count towards the app's limit.
  absl::Status EnsureContext() {
    if (!request_.context_id().empty()) return absl::OkStatus();
    v1::CreateContextRequest create;
    create.set_system_prompt(args_.Get("system"));
    create.set_title("withyctl chat");
    WITHY_ASSIGN_OR_RETURN(const v1::CreateContextResponse created, client_.CreateContext(create));
    request_.set_context_id(created.context().context_id());
    return absl::OkStatus();
  }

  void Report(const absl::Status& status) {
    if (status.ok()) return;
    failed_ = true;
    Fail(status);
  }

  // Executes a command. Returns false to leave.
  bool Do(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words[0] == "/quit" || words[0] == "/exit") return false;
    if (words[0] == "/slo") {
      Report(SetSloWords(words));
    } else if (words[0] == "/speculation") {
      Report(SetSpeculation(words));
    } else if (words[0] == "/tool") {
      AnswerTool(line.size() > words[0].size() ? line.substr(words[0].size() + 1) : "");
    } else if (words[0] == "/stats") {
      stats_ = !stats_;
    } else if (words[0] == "/new") {
      request_.clear_context_id();
      calls_.clear();
      dropped_ = 0;
      std::cerr << ContextText() << "\n";
    } else if (words[0] == "/context") {
      std::cerr << (request_.context_id().empty() ? ContextText() : request_.context_id()) << "\n";
    } else if (words[0] == "/help") {
      std::cerr << kHelp;
    } else {
      Report(absl::InvalidArgumentError(absl::StrCat(
          "there is no command ", words[0],
          ": /help lists them; to send a message that begins with /, type a space first")));
    }
    return true;
  }

  absl::Status SetSloWords(const std::vector<std::string>& words) {
    if (words.size() > 1) {
      WITHY_ASSIGN_OR_RETURN(*request_.mutable_slo(), SloFromWords(std::span(words).subspan(1)));
    }
    const std::string text = request_.slo().ShortDebugString();
    std::cerr << "SLO: " << (text.empty() ? "none" : text) << "\n";
    return absl::OkStatus();
  }

  absl::Status SetSpeculation(const std::vector<std::string>& words) {
    if (words.size() != 2) {
      return absl::InvalidArgumentError(
          "/speculation takes one of off, lookup, prefix, draft, head, auto");
    }
    WITHY_ASSIGN_OR_RETURN(const v1::Speculation speculation, SpeculationFromText(words[1]));
    request_.set_speculation(speculation);
    return absl::OkStatus();
  }

  void Answer(const std::string& line) {
    if (const absl::Status text = CheckUtf8("the line", line); !text.ok()) return Report(text);
    request_.mutable_prompt()->mutable_messages()->clear_messages();
    v1::Message& message = *request_.mutable_prompt()->mutable_messages()->add_messages();
    message.set_role("user");
    message.set_content(line);
    Ask();
  }

  // The first call without a result gets this one; once all have theirs, the model goes on.
  void AnswerTool(const std::string& result) {
    if (const absl::Status text = CheckUtf8("the line", result); !text.ok()) return Report(text);
    if (calls_.empty()) {
      return Report(absl::InvalidArgumentError("/tool: the model has called no tool"));
    }
    v1::Messages& messages = *request_.mutable_prompt()->mutable_messages();
    v1::Message& message = *messages.add_messages();
    message.set_role("tool");
    message.set_content(result);
    message.set_name(calls_.front().name());
    message.set_tool_call_id(calls_.front().id());
    calls_.erase(calls_.begin());
    if (calls_.empty()) return Ask();
    std::cerr << "(" << Counted(calls_.size(), "call") << " wait for /tool)\n";
  }

  // Gives the messages of request_ to the model.
  void Ask() {
    calls_.clear();
    AnswerCancel cancel;
    PromptProgressBar bar;
    bool said = false;
    v1::GenerateStarted started;
    v1::GenerateFinished finished;
    watcher_.SetAnswer(&cancel);
    absl::Status status = EnsureContext();
    if (status.ok()) {
      status =
          client_.Generate(request_, timeout_, &cancel, [&](const v1::GenerateResponse& event) {
            bar.Show(event);
            if (event.has_started()) {
              started = event.started();
              TellDropped(started.decision().dropped_messages());
            }
            said = said || event.has_delta();
            if (event.has_finished()) finished = event.finished();
            if (!event.has_delta()) return;
            std::cout << ForStandardOutput(event.delta().text()) << std::flush;
            if (!std::cout) cancel.Cancel();  // the output has no reader
          });
    }
    watcher_.SetAnswer(nullptr);
    bar.Remove();
    std::cout << "\n" << std::flush;
    if (finished.reason() == v1::FINISH_REASON_CANCELLED || absl::IsCancelled(status)) {
      std::cerr << (said ? "(cancelled: its text so far stays in the context)\n"
                         : "(cancelled before its first word: nothing stays in the context)\n");
    } else {
      Report(status);
    }
    if (!status.ok()) return;
    calls_.assign(finished.tool_calls().begin(), finished.tool_calls().end());
    std::cerr << CallsText(finished.tool_calls());
    // Results of the calls are collected there.
    if (!calls_.empty()) request_.mutable_prompt()->mutable_messages()->clear_messages();
    if (stats_) {
      std::cerr << StatsText(request_.slo(), started, finished);
      return;
    }
    std::cerr << CutNote(finished);
    const std::string speculation = SpeculationText(finished);
    if (isatty(STDERR_FILENO) != 0 && !speculation.empty())
      std::cerr << "(" << speculation << ")\n";
  }

  // Reports dropped messages once each time the window moves.
  void TellDropped(uint32_t messages) {
    if (messages > dropped_) {
      std::cerr << "(the conversation outgrew the window: the model no longer sees its oldest "
                << (messages == 1 ? "message" : Counted(messages, "message")) << ")\n";
    }
    dropped_ = messages;
  }

  Client& client_;
  InterruptWatcher& watcher_;
  const Args& args_;
  v1::GenerateRequest request_;
  const absl::Duration timeout_;
  bool stats_;
  std::vector<v1::ToolCall> calls_;  // without results
  uint32_t dropped_ = 0;             // dropped messages of the context reported so far
  bool failed_ = false;
};

int RunChat(const Args& args) {
  auto settings = SettingsFromArgs(args);
  if (!settings.ok()) return FailUsage(ToStd(settings.status().message()));
  const auto timeout = TimeoutFromArgs(args, kChatTimeout);
  if (!timeout.ok()) return FailUsage(ToStd(timeout.status().message()));
  if (const absl::Status system = CheckFlagsUtf8(args, {"system"}); !system.ok())
    return FailUsage(ToStd(system.message()));
  if (args.Has("context") && args.Has("system"))
    return FailUsage("--system is only for a new context, not with --context");
  const absl::Status tools = FillTools(args, settings->mutable_prompt()->mutable_messages());
  if (!tools.ok()) return FailUsage(ToStd(tools.message()));
  InterruptWatcher watcher;
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  Chat chat(**client, watcher, args, *std::move(settings), *timeout);
  if (const absl::Status started = chat.Start(); !started.ok()) return Fail(started);
  chat.Loop();
  return chat.failed() ? kExitFailed : kExitOk;
}

}  // namespace

std::vector<Command> ChatCommands() {
  std::vector<Flag> flags = {{"context", "ID", "continue this context (default: a new one)"},
                             {"system", "TEXT", "system prompt of a new context"},
                             {"stats", "", "show predicted and measured latency after each answer"},
                             TimeoutFlag(kChatTimeout)};
  for (Flag& flag : ToolFlags()) flags.push_back(std::move(flag));
  for (Flag& flag : SettingFlags()) {
    if (flag.name != "context" && flag.name != "request-id" && flag.name != "logprobs")
      flags.push_back(std::move(flag));
  }
  return {{"chat", "", "hold a conversation, one line of standard input per turn, in a context",
           WithConnection(std::move(flags)), RunChat}};
}

}  // namespace withy::cli
