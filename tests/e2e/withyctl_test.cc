// withyctl on a terminal, against the five real processes.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/unique_fd.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"

namespace withy::e2e {
namespace {

// A program on its own pseudo-terminal. Typed text, including Ctrl-C, reaches it as from a
// keyboard.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int master = -1;
    pid_ = forkpty(&master, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      execv(argv[0], argv.data());
      _exit(127);
    }
    master_ = UniqueFd(master);
  }
  ~Terminal() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void Type(const std::string& keys) {
    EXPECT_EQ(write(master_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  // Waits until `text` appears after the previously awaited text, for at most a minute.
  bool Shows(const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (true) {
      const size_t at = screen_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (!ReadMore(deadline)) return false;
    }
  }
  // Waits until any output appears after the previously awaited text.
  bool ShowsMore() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (screen_.size() == seen_) {
      if (!ReadMore(deadline)) return false;
    }
    return true;
  }
  const std::string& screen() const { return screen_; }

  // Waits for the end, at most a minute. Returns the exit code, or 128 plus the signal, or -1.
  int WaitForExit() {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (ReadMore(deadline)) {
    }
    int status = 0;
    if (absl::Now() > deadline || waitpid(pid_, &status, 0) != pid_) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  bool ReadMore(absl::Time deadline) {
    pollfd polled = {.fd = master_.get(), .events = POLLIN, .revents = 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0 || poll(&polled, 1, static_cast<int>(left_ms)) <= 0) return false;
    char bytes[4096];
    const ssize_t count = read(master_.get(), bytes, sizeof bytes);
    if (count <= 0) return false;
    screen_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  pid_t pid_ = -1;
  UniqueFd master_;
  std::string screen_;
  size_t seen_ = 0;
};

std::string Withyctl() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "withyctl").string();
}

TEST(WithyctlTest, CtrlCCancelsTheAnswerAndNotTheProgram) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("orchestrator");
  const std::string token = board.BindApp("chat");
  Terminal chat(
      {Withyctl(), "chat", "--address", board.address(), "--token", token, "--max-tokens", "400"});
  ASSERT_TRUE(chat.Shows("/help lists the commands")) << chat.screen();
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type("talk for long\n");
  ASSERT_TRUE(chat.Shows("talk for long\r\n")) << "the terminal's echo";
  ASSERT_TRUE(chat.ShowsMore()) << "the answer has begun";
  chat.Type("\x03");
  ASSERT_TRUE(chat.Shows("(cancelled: its text so far stays in the context)")) << chat.screen();
  ASSERT_TRUE(chat.Shows("> "));

  // Without a running answer Ctrl-C does not end the program either.
  chat.Type("\x03");
  ASSERT_TRUE(chat.Shows("(/quit or Ctrl-D leaves)")) << chat.screen();
  chat.Type("/context\n");
  ASSERT_TRUE(chat.Shows("ctx_")) << chat.screen();
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type("/quit\n");
  EXPECT_EQ(chat.WaitForExit(), 0) << chat.screen();

  // The context has the partial answer, marked.
  const auto stub = board.NewStub();
  grpc::ClientContext listing;
  Authorise(&listing, token);
  v1::ListContextsResponse contexts;
  ASSERT_TRUE(stub->ListContexts(&listing, {}, &contexts).ok());
  ASSERT_EQ(contexts.contexts_size(), 1);
  // A call on the context waits until the cancelled one is committed.
  const std::string context = contexts.contexts(0).context_id();
  EXPECT_TRUE(Generate(*stub, token, UserRequest(context, "go on", 4)).status.ok());
  grpc::ClientContext getting;
  Authorise(&getting, token);
  v1::GetContextRequest get;
  get.set_context_id(context);
  v1::GetContextResponse kept;
  ASSERT_TRUE(stub->GetContext(&getting, get, &kept).ok());
  ASSERT_EQ(kept.messages_size(), 4);
  EXPECT_TRUE(kept.messages(1).cancelled());
}

// With a draft that is always right, and without drafts.
TEST(WithyctlTest, AChatTellsHowManyDraftedTokensAPassAccepts) {
  Board board(
      {"model.path=" + TestTargetPath(), "draft.path=" + TestTargetPath(), "model.tree_rows=5"});
  board.SpeculateAlways();
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("orchestrator");
  Terminal chat({Withyctl(), "chat", "--address", board.address(), "--token", board.BindApp("chat"),
                 "--greedy", "--max-tokens", "20"});
  ASSERT_TRUE(chat.Shows("> "));
  chat.Type("/speculation draft\nhello\n");
  ASSERT_TRUE(chat.Shows("accepted (draft ")) << chat.screen();
  ASSERT_TRUE(chat.Shows(" accepted a pass, ")) << chat.screen();
  chat.Type("/speculation maybe\n");
  ASSERT_TRUE(chat.Shows("it must be off, lookup, prefix, draft, head or auto")) << chat.screen();
  chat.Type("/speculation off\nhello\n/context\n");
  ASSERT_TRUE(chat.Shows("ctx_")) << chat.screen();
  EXPECT_EQ(chat.screen().find("accepted a pass", chat.screen().find("/speculation off")),
            std::string::npos)
      << chat.screen();
  chat.Type("/quit\n");
  chat.WaitForExit();
}

TEST(WithyctlTest, AChatInWhichNothingIsSaidLeavesNoContext) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("orchestrator");
  const std::string token = board.BindApp("chat");
  Terminal chat(
      {Withyctl(), "chat", "--address", board.address(), "--token", token, "--max-tokens", "4"});
  const auto contexts = [&] {
    grpc::ClientContext listing;
    Authorise(&listing, token);
    v1::ListContextsResponse response;
    EXPECT_TRUE(board.NewStub()->ListContexts(&listing, {}, &response).ok());
    return response.contexts_size();
  };
  chat.Type("/new\n/new\n/context\n");
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(chat.Shows("a new context begins with the next message")) << chat.screen();
  }
  EXPECT_EQ(contexts(), 0);
  chat.Type("hello\n/context\n");
  ASSERT_TRUE(chat.Shows("ctx_")) << chat.screen();
  chat.Type("/new\n/quit\n");
  EXPECT_EQ(chat.WaitForExit(), 0) << chat.screen();
  EXPECT_EQ(contexts(), 1);
}

// Runs a command line with separate output and error; `out` is the destination of standard output.
struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};
Ran RunLine(const std::string& dir, const std::string& line, const std::string& input = "/dev/null",
            const std::string& out = "") {
  const std::string command =
      line + " >" + (out.empty() ? dir + "/out" : out) + " 2>" + dir + "/err <" + input;
  const auto text = [](const std::string& path) {
    std::stringstream read;
    read << std::ifstream(path).rdbuf();
    return read.str();
  };
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text(dir + "/out"),
          text(dir + "/err")};
}

// Runs withyctl. `variables` precede the command, as in a shell.
Ran RunShell(const std::string& dir, const std::string& variables, const std::string& words) {
  return RunLine(dir, variables + " " + Withyctl() + " " + words);
}

class WithyctlOnBoard : public testing::Test {
 protected:
  void StartBoard(std::vector<std::string> overrides = {}) {
    board_ = std::make_unique<Board>(std::move(overrides));
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("orchestrator");
    token_ = board_->BindApp("test");
  }
  std::string Line(const std::string& words) const {
    return Withyctl() + " " + words + " --address " + board_->address() + " --token " + token_;
  }
  Ran Run(const std::string& words, const std::string& input = "/dev/null",
          const std::string& out = "") const {
    return RunLine(board_->dir(), Line(words), input, out);
  }
  // A file with the given text.
  std::string Input(const std::string& text) const {
    std::ofstream(board_->dir() + "/input") << text;
    return board_->dir() + "/input";
  }
  std::unique_ptr<Terminal> OnTerminal(std::vector<std::string> words) const {
    words.insert(words.begin(), Withyctl());
    for (const std::string& word :
         {std::string("--address"), board_->address(), std::string("--token"), token_}) {
      words.push_back(word);
    }
    return std::make_unique<Terminal>(words);
  }

  std::unique_ptr<Board> board_;
  std::string token_;
};

TEST_F(WithyctlOnBoard, WhatCannotBePrintedIsAFailureOfAnyCommand) {
  StartBoard();
  const auto fails = [](const Ran& ran, const std::string& words) {
    EXPECT_EQ(ran.code, 1) << words;
    EXPECT_NE(ran.err.find("cannot write to standard output: No space left on device"),
              std::string::npos)
        << words << ": " << ran.err;
  };
  for (const std::string words : {"--version", "--help", "generate --help"})
    fails(RunLine(board_->dir(), Withyctl() + " " + words, "/dev/null", "/dev/full"), words);
  fails(RunLine(board_->dir(), Withyctl() + " models inspect " + TestTargetPath(), "/dev/null",
                "/dev/full"),
        "models inspect");
  for (const std::string words :
       {"generate --max-tokens 4 hello", "generate --max-tokens 4 --json hello", "plan hello",
        "count-tokens hello", "status", "status --json", "models list", "contexts list",
        "contexts create", "contexts stats"}) {
    fails(Run(words, "/dev/null", "/dev/full"), words);
  }
  fails(Run("chat --max-tokens 4", Input("hello\nmore\n"), "/dev/full"), "chat");
  EXPECT_EQ(Run("status --quiet", "/dev/null", "/dev/full").code, 0) << "prints nothing";
  // If the reader stops early, the program ends silently, as usual in pipes.
  const Ran piped = RunLine(
      board_->dir(), "bash -c 'set -o pipefail; " + Line("contexts list --json") + " | true'");
  EXPECT_EQ(piped.err, "");
}

TEST_F(WithyctlOnBoard, AnAnswerThatWasCutSaysSo) {
  StartBoard();
  const Ran plain = Run("generate --greedy --max-tokens 5 talk for long");
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_NE(plain.err.find("(cut after 5 tokens, the limit: --max-tokens"), std::string::npos)
      << plain.err;
  EXPECT_EQ(plain.out.find("cut after"), std::string::npos) << "the answer is the answer";
  const Ran json = Run("generate --greedy --max-tokens 5 --json talk for long");
  EXPECT_NE(json.out.find("FINISH_REASON_MAX_TOKENS"), std::string::npos) << json.out;
  EXPECT_NE(json.out.find("The answer was cut after 5 tokens"), std::string::npos) << json.out;
  EXPECT_NE(json.out.find("\"temperature\":0"), std::string::npos) << "what was used: " << json.out;
  const Ran chat = Run("chat --greedy --max-tokens 5", Input("talk for long\n"));
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_NE(chat.err.find("(cut after 5 tokens"), std::string::npos) << chat.err;
}

TEST_F(WithyctlOnBoard, ADefaultLengthIsWhatTheWindowHasRoomFor) {
  StartBoard({"model.context_length=64", "model.max_tokens=5000"});
  for (const std::string words : {"generate --json talk for long", "generate --raw --json talk"}) {
    const Ran ran = Run(words);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_TRUE(ran.out.find("FINISH_REASON_CONTEXT_FULL") != std::string::npos ||
                ran.out.find("FINISH_REASON_END_OF_TURN") != std::string::npos)
        << ran.out;
  }
  EXPECT_NE(Run("generate --max-tokens 65 hello").err.find("the model's window of 64"),
            std::string::npos)
      << "what a call itself asks for is refused where it cannot be";
}

TEST_F(WithyctlOnBoard, DefaultSamplingIsTheConfigurationsAndACallsOwnComesFirst) {
  StartBoard({"model.sampling.temperature=0.25", "model.sampling.top_k=7"});
  const Ran ran = Run("generate --max-tokens 4 --json hello");
  for (const std::string field : {"\"temperature\":0.25", "\"top_k\":7", "\"top_p\":0.95",
                                  "\"repetition_penalty\":1.1", "\"repetition_window\":256"}) {
    EXPECT_NE(ran.out.find(field), std::string::npos) << field << ": " << ran.out;
  }
  const Ran own = Run("generate --max-tokens 4 --temperature 2 --json hello");
  EXPECT_NE(own.out.find("\"temperature\":2,\"top_k\":7"), std::string::npos) << own.out;
  const Ran greedy = Run("generate --max-tokens 4 --greedy --json hello");
  EXPECT_NE(greedy.out.find("\"temperature\":0,\"top_k\":0,\"top_p\":1"), std::string::npos)
      << greedy.out;
  const Ran models = Run("models list --json");
  EXPECT_NE(models.out.find("\"temperature\":0.25", models.out.find("\"default_sampling\":{")),
            std::string::npos)
      << models.out;
}

TEST_F(WithyctlOnBoard, ATitleStaysInItsLineOfTheTable) {
  StartBoard();
  EXPECT_EQ(Run("contexts create --title $'two\\nlines'").code, 0);
  const auto stub = board_->NewStub();
  for (const std::string title : {"two\nlines", "\x1b[2J\x1b[31mred", "\xE6\x97\xA5\xE6\x9C\xAC"}) {
    grpc::ClientContext context;
    Authorise(&context, token_);
    v1::CreateContextRequest request;
    request.set_title(title);
    v1::CreateContextResponse response;
    ASSERT_TRUE(stub->CreateContext(&context, request, &response).ok());
  }
  const Ran list = Run("contexts list");
  EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 5) << list.out;
  EXPECT_NE(list.out.find("two\\nlines"), std::string::npos) << list.out;
  EXPECT_EQ(list.out.find('\x1b'), std::string::npos) << list.out;
  EXPECT_NE(Run("contexts list --json").out.find("two\\nlines"), std::string::npos)
      << "as JSON has it";
}

TEST_F(WithyctlOnBoard, AChatSaysThatThereIsNoSuchCommand) {
  StartBoard();
  const Ran chat = Run("chat --max-tokens 4", Input("/statts\n/etc/passwd is what?\n/help\n"));
  EXPECT_EQ(chat.code, 1);
  EXPECT_NE(chat.err.find("there is no command /statts"), std::string::npos) << chat.err;
  EXPECT_NE(chat.err.find("there is no command /etc/passwd"), std::string::npos) << chat.err;
  EXPECT_NE(chat.err.find("/quit                         leave"), std::string::npos) << chat.err;
  EXPECT_EQ(Run("contexts list --json").out.find("ctx_"), std::string::npos) << "nothing was sent";
  EXPECT_EQ(Run("chat --max-tokens 4", Input(" /etc/passwd is what?\n")).code, 0);
}

TEST_F(WithyctlOnBoard, TokensHaveTextInJson) {
  StartBoard();
  const Ran ran = Run("generate --greedy --max-tokens 4 --logprobs 2 --json hello");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("\"tokens\":{\"tokens\":[{\"id\":"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("\"text\":\""), std::string::npos) << ran.out;
}

std::string SomeWords() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "word " + std::to_string(i * i % 97) + ", ";
  return text;
}

TEST_F(WithyctlOnBoard, ATextIsScoredByTheServiceAsFromTheFile) {
  StartBoard({"model.path=" + TestElasticPath(), "orchestrator.tlm_path=off"});
  const std::string text = Input(SomeWords());
  const std::string settings = " --level 20 --reference-kv q4 --window 256 --json";
  const Ran service = Run("score " + text + settings);
  ASSERT_EQ(service.code, 0) << service.err;
  EXPECT_NE(service.out.find("\"divergence_mean\":"), std::string::npos) << service.out;
  EXPECT_EQ(service.out.find("\"divergence_mean\":0,"), std::string::npos) << service.out;
  // withyctl packs the file where XDG_CACHE_HOME says.
  const Ran file = RunShell(board_->dir(), "XDG_CACHE_HOME=" + board_->dir(),
                            "score " + text + settings + " --model " + TestElasticPath());
  ASSERT_EQ(file.code, 0) << file.err;
  EXPECT_EQ(file.out, service.out) << "the same kernels give the same bits";

  const Ran table = Run("score " + Input("A few words.") + " --prompt hello");
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("PERPLEXITY"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("tokens were scored"), std::string::npos) << table.out;

  const Ran level = Run("score " + Input(SomeWords()) + " --level 33");
  EXPECT_EQ(level.code, 1);
  EXPECT_NE(level.err.find("has the levels 20, 60, 100"), std::string::npos) << level.err;
}

TEST_F(WithyctlOnBoard, TextsGetVectorsInLinesOfJson) {
  StartBoard();
  const Ran ran = Run("embed 'some words' more 'some words'");
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::vector<std::string> lines;
  std::istringstream out(ran.out);
  for (std::string line; std::getline(out, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 3u) << ran.out;
  EXPECT_EQ(lines[0].rfind("{\"index\":0,\"tokens\":", 0), 0u) << lines[0];
  EXPECT_EQ(lines[0].substr(lines[0].find("\"tokens\"")),
            lines[2].substr(lines[2].find("\"tokens\"")));
  EXPECT_NE(lines[0].substr(12), lines[1].substr(12));
  EXPECT_EQ(Run("embed").code, 2);
  const Ran draft = Run("embed --model draft x");
  EXPECT_EQ(draft.code, 1);
  EXPECT_NE(draft.err.find("gives no vectors"), std::string::npos) << draft.err;
}

TEST(WithyctlTest, WhatCannotBeScoredIsNamed) {
  char pattern[] = "/tmp/withy-score-XXXXXX";
  const std::string dir = mkdtemp(pattern);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir + "/" + name, std::ios::binary) << text;
    return dir + "/" + name;
  };
  const auto says = [&](const std::string& words, int code, const std::string& what) {
    const Ran ran = RunShell(dir, "XDG_CACHE_HOME=" + dir + " WITHY_ADDRESS=unix:" + dir + "/none",
                             "score " + words);
    EXPECT_EQ(ran.code, code) << words << ": " << ran.err;
    EXPECT_NE(ran.err.find(what), std::string::npos) << words << ": " << ran.err;
  };
  const std::string good = write("good", SomeWords());
  const std::string model = " --model " + TestTargetPath();
  says("", 2, "score takes one FILE");
  says(dir + "/missing", 1, "missing cannot be read");
  says(dir + " --model m.gguf", 1, "cannot be read: give a text file");
  says(write("empty", "") + model, 1, "empty is empty");
  says(write("latin1", "caf\xE9") + model, 1, "UTF-8");
  says(good + " --kv-format q3" + model, 2, "q8, q4, q4q2, q2");
  says(good + " --level 50" + model, 1, "--level is 50");
  says(good + " --against x", 2, "name the first one with --model");
  says(good + " --logprobs 2" + model, 2, "--logprobs needs --json");
  says(good + " --prompt hi --window 64" + model, 2, "--window or --prompt");
  says(good + model + " --against " + TestForeignDraftPath(), 1, "have different vocabularies");
  says(good + " --token abc", 1, "none");
  const Ran pair = RunShell(dir, "XDG_CACHE_HOME=" + dir,
                            "score " + good + model + " --against " + TestDraftPath());
  EXPECT_EQ(pair.code, 0) << pair.err;
  EXPECT_NE(pair.out.find("divergence (KLD) mean"), std::string::npos) << pair.out;
  std::filesystem::remove_all(dir);
}

// A prompt that takes seconds to compute: a terminal shows the progress, a pipe nothing.
TEST_F(WithyctlOnBoard, ALongPromptShowsItsProgress) {
  StartBoard({"model.path=" + SlowModelPath(), "model.threads=1", "model.sampling.temperature=0"});
  const std::string prompt = Input(std::string(7000, '?'));
  const auto words = [&] {
    return std::vector<std::string>{"generate", "--max-tokens", "2", "--raw", "--file", prompt};
  };
  {
    const auto terminal = OnTerminal(words());
    EXPECT_TRUE(terminal->Shows("reading the prompt: ")) << terminal->screen();
  }  // the caller leaves, so the prompt is not completed
  const Ran piped = Run("generate --timeout-s 3 --max-tokens 2 --raw --file " + prompt);
  EXPECT_EQ(piped.err.find("reading"), std::string::npos) << piped.err;
}

// Without its modules, a token or a service the example prints one line, not a traceback.
TEST(ExamplesTest, ThePythonExampleSaysWhatIsMissing) {
  char pattern[] = "/tmp/withy-e2e-XXXXXX";
  const std::string dir = mkdtemp(pattern);
  std::filesystem::create_directories(dir + "/without");
  std::ofstream(dir + "/without/grpc.py") << "raise ImportError(\"No module named 'grpc'\")\n";
  const std::string script = " /usr/bin/python3 examples/python/generate.py hello";
  const std::string home = "XDG_CONFIG_HOME=" + dir + " ";
  const auto run = [&](const std::string& variables) {
    return RunLine(dir, home + variables + script);
  };
  const Ran without = run("PYTHONPATH=" + dir + "/without");
  EXPECT_EQ(without.code, 1);
  EXPECT_NE(without.err.find("apt-get install python3-grpcio"), std::string::npos) << without.err;
  EXPECT_EQ(without.err.find("Traceback"), std::string::npos) << without.err;
  for (const std::string& variables :
       {std::string("WITHY_ADDRESS=unix:/nonexistent/withy.sock"),
        std::string("WITHY_ADDRESS=unix:/nonexistent/withy.sock WITHY_TOKEN=app_1.a")}) {
    const Ran ran = run(variables);
    EXPECT_EQ(ran.code, 1);
    EXPECT_EQ(ran.err.rfind("generate.py: ", 0), 0u) << ran.err;
    EXPECT_EQ(ran.err.find("Traceback"), std::string::npos) << ran.err;
  }
  std::filesystem::remove_all(dir);
}

TEST(WithyctlTest, NoTokenIsLost) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("orchestrator");
  const std::string config = "XDG_CONFIG_HOME=" + board.dir() + "/config";
  const auto run = [&](const std::string& variables, const std::string& words) {
    return RunShell(board.dir(), variables,
                    words + " --config " + board.dir() + "/withy.textproto");
  };
  EXPECT_EQ(run(config, "apps bind my.app").code, 0);
  EXPECT_EQ(run(config, "contexts create --title mine").code, 0);
  EXPECT_EQ(run(config, "apps bind second").code, 0);
  EXPECT_EQ(run(config, "contexts list").out.find("mine"), std::string::npos) << "second's now";
  EXPECT_NE(run(config, "contexts list --app my.app").out.find("mine"), std::string::npos);
  const Ran unknown = run(config, "contexts list --app third");
  EXPECT_NE(unknown.err.find("apps bind third"), std::string::npos) << unknown.err;
  EXPECT_EQ(run(config, "apps bind my.app").code, 0) << "renewed with the token that is kept";

  // For scripts: the same token while it is valid.
  const std::string printed = run(config, "apps bind my.app --print").out;
  EXPECT_FALSE(printed.empty());
  EXPECT_EQ(run(config, "apps bind my.app --print").out, printed);
  EXPECT_EQ(run(config, "apps bind second --print").code, 0);
  EXPECT_NE(run(config, "contexts list").out.find("mine"), std::string::npos)
      << "printing changes no default";
  const std::string renewed = run(config, "apps renew my.app --print").out;
  EXPECT_NE(renewed, printed);
  EXPECT_EQ(run(config, "apps bind my.app --print").out, renewed);

  // No app is registered if its token cannot be stored, unless the token is printed.
  for (const std::string& nowhere :
       {std::string("XDG_CONFIG_HOME=/proc/self"), std::string("env -u HOME -u XDG_CONFIG_HOME")}) {
    const Ran refused = run(nowhere, "apps bind fourth");
    EXPECT_EQ(refused.code, 1);
    EXPECT_NE(refused.err.find("XDG_CONFIG_HOME"), std::string::npos) << refused.err;
  }
  EXPECT_EQ(run(config, "apps list").out.find("fourth"), std::string::npos);
  const Ran only_printed = run("XDG_CONFIG_HOME=/proc/self", "apps bind fourth --print");
  EXPECT_EQ(only_printed.code, 0);
  EXPECT_NE(only_printed.err.find("nowhere else"), std::string::npos) << only_printed.err;
  EXPECT_EQ(
      run("WITHY_TOKEN=" + only_printed.out.substr(0, only_printed.out.find('\n')), "contexts list")
          .code,
      0);
}

TEST(WithyctlTest, WhatWouldBeIgnoredIsRefused) {
  char pattern[] = "/tmp/withy-e2e-XXXXXX";
  const std::string dir = mkdtemp(pattern);
  const auto run = [&](const std::string& words) {
    return RunShell(dir, "WITHY_ADDRESS=unix:/nonexistent", words);
  };
  for (const std::string words :
       {"status now", "contexts list mine", "status --quiet --json", "generate --logprobs 2 hello",
        "count-tokens --context ctx_1 hello", "generate --timeout-s 0 hello",
        "apps bind my.app --print --json", "generate --file /", "generate --file /dev/zero",
        "generate --strict hello", "chat --strict", "generate --slo-ttft-ms 0 hello",
        "models synth --shape tiny --levels 20,,50 --out none.gguf"}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 2) << words << ": " << ran.err;
    EXPECT_EQ(ran.out, "") << words;
  }
  EXPECT_EQ(run("--version").out.rfind("withyctl ", 0), 0u);
  std::filesystem::remove_all(dir);
}

TEST(WithyctlTest, AnAppsNameIsItsOwnAndTheOperatorsToRenew) {
  Board board;
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("orchestrator");
  const std::string config = board.dir() + "/withy.textproto";
  const auto run = [&](const std::string& token, std::vector<std::string> words) {
    std::vector<std::string> arguments = {"/usr/bin/env", "XDG_CONFIG_HOME=" + board.dir(),
                                          Withyctl()};
    arguments.insert(arguments.end(), words.begin(), words.end());
    for (const std::string& flag :
         {std::string("--config"), config, std::string("--token"), token}) {
      arguments.push_back(flag);
    }
    auto terminal = std::make_unique<Terminal>(arguments);
    const int code = terminal->WaitForExit();
    return std::pair(code, terminal->screen());
  };
  const std::string token = board.BindApp("mail");
  const auto [refused, why] = run("another", {"apps", "bind", "mail", "--print"});
  EXPECT_NE(refused, 0);
  EXPECT_NE(why.find("withyctl apps renew mail"), std::string::npos) << why;
  EXPECT_EQ(run(token, {"contexts", "list"}).first, 0) << "its token is as good as before";
  const auto [renewed, fresh] = run("", {"apps", "renew", "mail", "--print"});
  EXPECT_EQ(renewed, 0) << fresh;
  const std::string next = fresh.substr(0, fresh.find_first_of("\r\n"));
  EXPECT_EQ(run(next, {"contexts", "list"}).first, 0) << fresh;
  EXPECT_EQ(run(next, {"apps", "bind", "mail", "--print"}).first, 0);
}

// Ctrl-C during a long calibration; the next run continues, and the service uses the result.
TEST(WithyctlTest, ACalibrationGoesOnWhereItWasInterrupted) {
  Board board;
  const std::string config = board.dir() + "/withy.textproto";
  const auto calibrate = [&](const std::string& rounds) {
    return std::make_unique<Terminal>(std::vector<std::string>{
        Withyctl(), "calibrate", "--config", config, "--rounds", rounds, "--tlm", TestTlmPath()});
  };
  // A thousand rounds would take minutes.
  const auto interrupted = calibrate("1000");
  ASSERT_TRUE(interrupted->Shows("round ")) << interrupted->screen();
  interrupted->Type("\x03");
  EXPECT_EQ(interrupted->WaitForExit(), 1) << interrupted->screen();
  EXPECT_NE(interrupted->screen().find("the same command continues from there"), std::string::npos)
      << interrupted->screen();

  const auto records = [&] {
    std::vector<std::string> texts;
    for (const auto& entry : std::filesystem::directory_iterator(board.dir() + "/state/packed")) {
      if (!entry.path().string().ends_with(".calibration.textproto")) continue;
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      texts.push_back(text.str());
    }
    return texts;
  };
  ASSERT_EQ(records().size(), 1u) << "it had not come to the TLM";
  const std::string partial = records()[0];
  EXPECT_EQ(partial.find("complete: true"), std::string::npos);
  const size_t at = partial.find("sample_us: ");
  ASSERT_NE(at, std::string::npos) << partial;
  const std::string first_sample = partial.substr(at, partial.find('\n', at) - at);

  const auto finished = calibrate("2");
  EXPECT_EQ(finished->WaitForExit(), 0) << finished->screen();
  ASSERT_EQ(records().size(), 2u) << "of the model and of the TLM";
  bool kept = false;
  for (const std::string& text : records()) {
    EXPECT_NE(text.find("complete: true"), std::string::npos) << text;
    kept = kept || text.find(first_sample) != std::string::npos;
  }
  EXPECT_TRUE(kept) << first_sample;
  const auto before = records();
  const auto again = calibrate("2");
  EXPECT_EQ(again->WaitForExit(), 0);
  EXPECT_NE(again->screen().find("measured already"), std::string::npos) << again->screen();
  EXPECT_EQ(records(), before) << "nothing is measured twice";

  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
  Terminal status({Withyctl(), "status", "--config", config});
  EXPECT_EQ(status.WaitForExit(), 0) << status.screen();
  EXPECT_NE(status.screen().find("; calibrated"), std::string::npos) << status.screen();
  const auto busy = calibrate("2");
  EXPECT_EQ(busy->WaitForExit(), 0);
  EXPECT_NE(busy->screen().find("withy is running on this board"), std::string::npos);
}

TEST(WithyctlTest, AStaleCalibrationIsNamedInTheLog) {
  Board board({"model.threads=1"});
  Terminal calibrate({Withyctl(), "calibrate", "--config", board.dir() + "/withy.textproto",
                      "--rounds", "1", "--tlm", "off"});
  ASSERT_EQ(calibrate.WaitForExit(), 0) << calibrate.screen();
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
  const std::string log = board.Log("model_worker");
  EXPECT_NE(log.find("another number of threads (2; here 1)"), std::string::npos) << log;
  EXPECT_NE(log.find("withyctl calibrate"), std::string::npos) << log;
}

}  // namespace
}  // namespace withy::e2e
