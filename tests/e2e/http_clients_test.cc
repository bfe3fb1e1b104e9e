// Packages that speak OpenAI's or Anthropic's API, unchanged, against the HTTP door of the five
// real processes: clients/ has what an application does with each. A package that is not installed
// is skipped.
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grammar/format_check.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/calling_model.h"

namespace withy::e2e {
namespace {

using testing::EndsWith;

// Pythons that ./withy test makes where it can (PyPI). There are two, since some packages want
// another version of openai than the others.
constexpr char kPython[] = "WITHY_OPENAI_PYTHON", kOtherPython[] = "WITHY_OPENAI2_PYTHON";

// Standard output of a shell command, and its exit code.
std::pair<std::string, int> OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char piece[4096];
  while (const size_t got = fread(piece, 1, sizeof piece, pipe)) output.append(piece, got);
  return {output, pclose(pipe)};
}

// A script of clients/, and what it needs.
struct Client {
  const char* script;
  const char* package;  // as Python imports it
  const char* python;   // the variable that names it
  // Asks the model of calling_model.h, which calls a tool and says what it saw; else the pocket
  // model, whose template knows no tools.
  bool calls_tools;
  bool needs_forms;  // of answers: a build with XGrammar
};

void PrintTo(const Client& client, std::ostream* out) { *out << client.script; }

class HttpClientTest : public ::testing::TestWithParam<Client> {};

TEST_P(HttpClientTest, IsServed) {
  const Client& client = GetParam();
  const char* given = std::getenv(client.python);
  const std::string python = given != nullptr ? given : "python3";
  const std::string find =
      absl::StrCat(" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(\"",
                   client.package, "\") is None)' 2>&1");
  if (OutputOf(python + find).second != 0) {
    GTEST_SKIP() << "the Python package " << client.package << " is missing (" << client.python
                 << " names a Python that has it)";
  }
  if (client.needs_forms && !WITHY_XGRAMMAR) GTEST_SKIP() << "this build has no XGrammar";

  const std::string url = absl::StrCat("127.0.0.1:", FreePort());
  const std::string model =
      client.calls_tools ? CallingModelPath() : WITHY_SOURCE_DIR "/models/withy-pocket-q8_0.gguf";
  Board board({"orchestrator.http_listen=" + url, "model.path=" + model});
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("orchestrator");
  const auto [output, code] = OutputOf(
      absl::StrCat("HOME=", board.dir(), " ", python, " ", WITHY_SOURCE_DIR, "/tests/e2e/clients/",
                   client.script, " http://", url, "/v1 ", board.BindApp("app"), " 2>&1"));
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, EndsWith("ok\n"));
}

INSTANTIATE_TEST_SUITE_P(
    Clients, HttpClientTest,
    ::testing::Values(Client{"openai_client.py", "openai", kPython, false, false},
                      Client{"openai_agent.py", "openai", kPython, true, false},
                      Client{"openai_forms.py", "openai", kPython, true, true},
                      Client{"anthropic_client.py", "anthropic", kPython, false, false},
                      Client{"anthropic_agent.py", "anthropic", kPython, true, true},
                      Client{"langchain_client.py", "langchain_openai", kPython, true, true},
                      Client{"pydantic_ai_client.py", "pydantic_ai", kPython, true, true},
                      Client{"openai_agents_client.py", "agents", kPython, true, true},
                      Client{"llm_client.py", "llm", kPython, true, true},
                      Client{"litellm_client.py", "litellm", kOtherPython, true, true},
                      Client{"instructor_client.py", "instructor", kOtherPython, true, true}),
    [](const ::testing::TestParamInfo<Client>& client) {
      std::string name = client.param.script;
      return name.substr(0, name.find('.'));
    });

}  // namespace
}  // namespace withy::e2e
