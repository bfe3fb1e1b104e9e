// Tests the conversion of command lines to requests, and the output.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/contract_limits.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/kv_stats.h"
#include "cli/models/inspect.h"
#include "cli/models/token_files.h"
#include "cli/output.h"
#include "cli/prompt_flags.h"
#include "cli/stats.h"
#include "cli/token_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "withy/v1/context_store.grpc.pb.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<Args> Parse(std::vector<std::string> words) {
  std::vector<Flag> flags = PromptFlags();
  for (Flag& flag : SettingFlags()) flags.push_back(std::move(flag));
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return Args::Parse(flags, pointers);
}

TEST(DeviceTest, TellsOfTheCpuAndOfGpus) {
  const std::vector<Command> commands = DeviceCommands();
  const auto args = Args::Parse(commands[0].flags, {});
  ASSERT_TRUE(args.ok()) << args.status();
  testing::internal::CaptureStdout();
  EXPECT_EQ(commands[0].run(*args), kExitOk);
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, AllOf(HasSubstr("cpu"), HasSubstr(" cores"), HasSubstr("cuda:0")));
}

TEST(FlagsTest, ParsesAllForms) {
  const auto args =
      Parse({"one", "--raw", "--seed=5", "--stop", "a", "--stop", "b", "--", "--two"});
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_EQ(args->positional(), (std::vector<std::string>{"one", "--two"}));
  EXPECT_TRUE(args->Has("raw"));
  EXPECT_EQ(args->GetAll("stop"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(args->Integer("seed", 0, 9)->value(), 5);
  EXPECT_FALSE(args->Integer("seed", 6, 9).ok());
  EXPECT_FALSE(args->Integer("priority", -10, 10)->has_value());
}

TEST(FlagsTest, NamesWhatIsWrong) {
  EXPECT_THAT(std::string(Parse({"--nope"}).status().message()), HasSubstr("--nope"));
  EXPECT_THAT(std::string(Parse({"--raw=1"}).status().message()),
              HasSubstr("--raw takes no value"));
  EXPECT_THAT(std::string(Parse({"--seed"}).status().message()), HasSubstr("--seed needs a value"));
  EXPECT_THAT(std::string(Parse({"--top-p", "x"})->Number("top-p").status().message()),
              HasSubstr("must be a number"));
}

TEST(FlagsTest, ASeedIsAnyOf64Bits) {
  const auto args = Parse({"--seed", "17945157514201982996"});
  EXPECT_EQ(SettingsFromArgs(*args)->sampling().seed(), 17945157514201982996u);
  for (const char* bad : {"-1", "18446744073709551616", "x"}) {
    EXPECT_THAT(std::string(SettingsFromArgs(*Parse({"--seed", bad})).status().message()),
                HasSubstr("between 0 and 18446744073709551615"));
  }
}

TEST(PromptTest, TextIsAUsersMessageUnlessRaw) {
  const auto prompt = PromptFromArgs(*Parse({"Good", "morning", "--system", "Be brief"}));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  ASSERT_EQ(prompt->messages().messages_size(), 2);
  EXPECT_EQ(prompt->messages().messages(0).role(), "system");
  EXPECT_EQ(prompt->messages().messages(1).role(), "user");
  EXPECT_EQ(prompt->messages().messages(1).content(), "Good morning");
  EXPECT_EQ(PromptFromArgs(*Parse({"--raw", "Good morning"}))->text(), "Good morning");
}

TEST(PromptTest, MessagesAndFiles) {
  const auto prompt = PromptFromArgs(
      *Parse({"--message", "user:a:b", "--message", "assistant:c", "--message", "user:d"}));
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(prompt->messages().messages(0).content(), "a:b");
  EXPECT_EQ(prompt->messages().messages(1).role(), "assistant");

  const std::string path = ::testing::TempDir() + "/prompt.txt";
  std::ofstream(path) << "from a file";
  EXPECT_EQ(PromptFromArgs(*Parse({"--file", path}))->messages().messages(0).content(),
            "from a file");
  EXPECT_FALSE(PromptFromArgs(*Parse({"--file", "/nonexistent"})).ok());
}

TEST(PromptTest, ToolsAndTemplateArgumentsGoWithMessages) {
  const std::string path = ::testing::TempDir() + "/tools.json";
  std::ofstream(path) << "[{}]";
  const auto prompt = PromptFromArgs(
      *Parse({"Look!", "--tools", path, "--template-arguments", R"({"enable_thinking": false})"}));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->messages().tools_json(), "[{}]");
  EXPECT_EQ(prompt->messages().template_arguments_json(), R"({"enable_thinking": false})");
  EXPECT_FALSE(PromptFromArgs(*Parse({"--raw", "Look!", "--tools", path})).ok());
  EXPECT_FALSE(PromptFromArgs(*Parse({"--file", "-", "--tools", "-"})).ok());
  EXPECT_THAT(
      std::string(PromptFromArgs(*Parse({"Look!", "--tools", "/nonexistent"})).status().message()),
      HasSubstr("--tools /nonexistent"));
}

TEST(PromptTest, AFileThatIsNoPromptIsNamed) {
  const auto why = [](const std::string& path) {
    return std::string(PromptFromArgs(*Parse({"--file", path})).status().message());
  };
  EXPECT_THAT(why("/"), AllOf(HasSubstr("--file /"), HasSubstr("Is a directory")));
  EXPECT_THAT(why("/dev/zero"), HasSubstr("--file /dev/zero holds more than 1048576 bytes"));
  EXPECT_THAT(why("/nonexistent"), HasSubstr("give a file of text"));
  const std::string path = ::testing::TempDir() + "/longest_prompt.txt";
  std::ofstream(path) << std::string(kMaxPromptBytes, 'a');
  EXPECT_EQ(PromptFromArgs(*Parse({"--raw", "--file", path}))->text().size(), kMaxPromptBytes);
  std::ofstream(path) << "gr\xFC\xDF"
                      << "e";
  EXPECT_THAT(why(path), HasSubstr(path + " is not UTF-8 at byte 2 (0xFC)"));
  std::filesystem::remove(path);
}

TEST(PromptTest, TextThatIsNoUtf8IsNamedBeforeItIsSent) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"caf\xE9"}, {"a", "--system", "caf\xE9"}}) {
    EXPECT_THAT(std::string(PromptFromArgs(*Parse(words)).status().message()),
                AllOf(HasSubstr(words.back() == words.front() ? "TEXT" : "--system"),
                      HasSubstr("not UTF-8 at byte 3 (0xE9)")));
  }
  EXPECT_THAT(std::string(SettingsFromArgs(*Parse({"--stop", "\x80"})).status().message()),
              HasSubstr("--stop is not UTF-8 at byte 0"));
}

TEST(PromptTest, ContradictionsAreErrors) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"text", "--message", "user:x"},
                                             {"--message", "no colon"},
                                             {"--raw", "--message", "user:x"}}) {
    EXPECT_EQ(PromptFromArgs(*Parse(words)).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SettingsTest, TheFormOfAnAnswerComesFromAFlagOrAFile) {
  EXPECT_FALSE(SettingsFromArgs(*Parse({}))->has_output_format());
  EXPECT_TRUE(SettingsFromArgs(*Parse({"--json-object"}))->output_format().json_object());
  EXPECT_EQ(SettingsFromArgs(*Parse({"--regex", "a+"}))->output_format().regex(), "a+");
  const std::string file = ::testing::TempDir() + "withy_form.txt";
  std::ofstream(file) << R"({"type": "object"})";
  EXPECT_EQ(SettingsFromArgs(*Parse({"--json-schema", file}))->output_format().json_schema(),
            R"({"type": "object"})");
  EXPECT_EQ(SettingsFromArgs(*Parse({"--grammar", file}))->output_format().grammar(),
            R"({"type": "object"})");
  EXPECT_THAT(
      std::string(SettingsFromArgs(*Parse({"--regex", "a", "--json-object"})).status().message()),
      HasSubstr("--json-object or --regex"));
  std::remove(file.c_str());
}

TEST(SettingsTest, BiasesPenaltiesAndToolChoiceBecomeFields) {
  const auto request = SettingsFromArgs(
      *Parse({"--presence-penalty", "-1.5", "--frequency-penalty", "0.5", "--logit-bias", "7=-100",
              "--logit-bias", "9=1.5", "--tool-choice", "look"}));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_FLOAT_EQ(request->sampling().presence_penalty(), -1.5f);
  EXPECT_FLOAT_EQ(request->sampling().frequency_penalty(), 0.5f);
  ASSERT_EQ(request->sampling().logit_bias_size(), 2);
  EXPECT_EQ(request->sampling().logit_bias(0).token(), 7u);
  EXPECT_FLOAT_EQ(request->sampling().logit_bias(1).bias(), 1.5f);
  EXPECT_EQ(request->output_format().tool_calls().tool(), "look");
  EXPECT_FALSE(SettingsFromArgs(*Parse({"--logit-bias", "7"})).ok());
  const auto any = SettingsFromArgs(*Parse({"--tool-choice", "required"}));
  EXPECT_EQ(any->output_format().tool_calls().tool(), "");
  EXPECT_FALSE(any->output_format().tool_calls().free_text());
  const auto maybe = SettingsFromArgs(*Parse({"--tool-choice", "auto"}));
  EXPECT_TRUE(maybe->output_format().tool_calls().free_text());
}

TEST(SettingsTest, EveryFlagReachesItsField) {
  const auto request = SettingsFromArgs(*Parse({"--slo-ttft-ms",
                                                "200",
                                                "--slo-tpot-ms=10",
                                                "--strict",
                                                "--temperature",
                                                "0.5",
                                                "--top-k",
                                                "40",
                                                "--top-p",
                                                "0.9",
                                                "--min-p",
                                                "0.1",
                                                "--repetition-penalty",
                                                "1.1",
                                                "--seed",
                                                "7",
                                                "--max-tokens",
                                                "9",
                                                "--stop",
                                                "END",
                                                "--logprobs",
                                                "2",
                                                "--priority",
                                                "-3",
                                                "--request-id",
                                                "r",
                                                "--speculation",
                                                "off",
                                                "--level",
                                                "60",
                                                "--prompt-level",
                                                "40",
                                                "--worker",
                                                "draft"}));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->slo().ttft_ms(), 200);
  EXPECT_EQ(request->slo().tpot_ms(), 10);
  EXPECT_TRUE(request->slo().strict());
  EXPECT_FLOAT_EQ(request->sampling().temperature(), 0.5f);
  EXPECT_EQ(request->sampling().top_k(), 40u);
  EXPECT_FLOAT_EQ(request->sampling().top_p(), 0.9f);
  EXPECT_FLOAT_EQ(request->sampling().min_p(), 0.1f);
  EXPECT_FLOAT_EQ(request->sampling().repetition_penalty(), 1.1f);
  EXPECT_EQ(request->sampling().seed(), 7u);
  EXPECT_EQ(request->limits().max_tokens(), 9u);
  EXPECT_EQ(request->limits().stop(0), "END");
  EXPECT_EQ(request->limits().logprobs(), 2u);
  EXPECT_EQ(request->priority(), -3);
  EXPECT_EQ(request->request_id(), "r");
  EXPECT_EQ(request->speculation(), v1::SPECULATION_OFF);
  EXPECT_EQ(request->model_level_percent(), 60u);
  EXPECT_EQ(request->prompt_level_percent(), 40u);
  EXPECT_EQ(request->model(), "draft");
  EXPECT_FALSE(request->report_progress()) << "a terminal asks for it";
  EXPECT_FALSE(SettingsFromArgs(*Parse({"--speculation", "maybe"})).ok());
  EXPECT_FALSE(SettingsFromArgs(*Parse({"--worker", "draft", "--model", "x"})).ok());
  v1::Slo slo;
  EXPECT_TRUE(SetSlo("tpot_ratio", 0.5, &slo).ok());
  EXPECT_EQ(slo.tpot_ratio(), 0.5);
  EXPECT_FALSE(SetSlo("strict", 1, &slo).ok());
}

TEST(SettingsTest, WhatIsNotAskedForIsLeftToTheService) {
  const auto request = SettingsFromArgs(*Parse({}));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->sampling().ByteSizeLong(), 0u);
  EXPECT_EQ(request->limits().max_tokens(), 0u);
}

TEST(SettingsTest, GreedyIsATemperatureOfZeroAndNoOther) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--greedy"}, {"--temperature", "0"}, {"--greedy", "--temperature", "0"}}) {
    const auto request = SettingsFromArgs(*Parse(words));
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_TRUE(request->sampling().has_temperature());
    EXPECT_EQ(request->sampling().temperature(), 0);
  }
  EXPECT_THAT(
      std::string(SettingsFromArgs(*Parse({"--greedy", "--temperature", "1"})).status().message()),
      HasSubstr("--greedy or --temperature"));
}

TEST(SettingsTest, AnSloIsAboveZeroAndStrictNeedsOne) {
  const auto why = [](std::vector<std::string> words) {
    return std::string(SettingsFromArgs(*Parse(std::move(words))).status().message());
  };
  for (const char* bad : {"0", "-1", "nan", "inf"}) {
    EXPECT_THAT(why({"--slo-ttft-ms", bad}), HasSubstr("it must be a number above 0"));
    EXPECT_THAT(why({"--slo-tpot-ratio", bad}), HasSubstr("--slo-tpot-ratio is "));
  }
  EXPECT_THAT(why({"--strict"}), HasSubstr("--strict has no SLO"));
  EXPECT_EQ(why({"--strict", "--slo-energy-mj", "5"}), "");

  const auto slo = [](std::vector<std::string> words) { return SloFromWords(words); };
  EXPECT_EQ(slo({"ttft_ms=200", "strict"})->ttft_ms(), 200);
  EXPECT_TRUE(slo({"ttft_ms=200", "strict"})->strict());
  EXPECT_EQ(slo({"off"})->ByteSizeLong(), 0u);
  for (const char* bad : {"ttft_ms=0", "ttft_ms=-1", "ttft_ms=nan", "strict", "ttft_ms", "x=1"}) {
    EXPECT_EQ(slo({bad}).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

// Stderr and exit code of a command.
std::pair<int, std::string> RunCommand(const std::vector<Command>& commands,
                                       const std::string& name, std::vector<std::string> words) {
  for (const Command& command : commands) {
    if (command.name != name) continue;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    testing::internal::CaptureStderr();
    const int code = command.run(*Args::Parse(command.flags, pointers));
    return {code, testing::internal::GetCapturedStderr()};
  }
  ADD_FAILURE() << "no command " << name;
  return {};
}

TEST(CommandTest, RandomWeightsGetTheLevelsThatWereMeant) {
  const std::string out = ::testing::TempDir() + "/withy_cli_synth.gguf";
  for (const std::string levels : {"20,,50", "", "20,", "x"}) {
    const auto [code, err] =
        RunCommand(ModelCommands(), "models synth",
                   {"--shape", "tiny", "--out", out, absl::StrCat("--levels=", levels)});
    EXPECT_EQ(code, kExitUsage) << levels;
    EXPECT_THAT(err, HasSubstr("--levels takes numbers")) << levels;
  }
  const auto [code, err] = RunCommand(ModelCommands(), "models synth",
                                      {"--shape", "tiny", "--out", out, "--levels=2,50"});
  EXPECT_EQ(code, kExitFailed);
  EXPECT_THAT(err, HasSubstr("less than the K and V"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(CommandTest, ATlmThatIsAwayIsNamedBeforeTheModelIsMeasured) {
  const std::string config = ::testing::TempDir() + "/withy_cli_calibrate.textproto";
  std::ofstream(config) << "model { path: \"/none.gguf\" }\n";
  const auto [code, err] = RunCommand(CalibrateCommands(), "calibrate",
                                      {"--config", config, "--tlm", "/nonexistent/tlm.gguf"});
  EXPECT_EQ(code, kExitFailed);
  EXPECT_THAT(err,
              AllOf(HasSubstr("/nonexistent/tlm.gguf does not exist"), HasSubstr("--tlm off")));
  std::filesystem::remove(config);
}

TEST(SettingsTest, ATimeoutIsAboveZero) {
  const std::vector<Flag> flags = {TimeoutFlag(absl::Minutes(1))};
  const auto timeout = [&](std::string word) {
    char* words[] = {word.data()};
    return TimeoutFromArgs(*Args::Parse(flags, words), absl::Minutes(1));
  };
  EXPECT_EQ(*timeout("text"), absl::Minutes(1));
  EXPECT_EQ(*timeout("--timeout-s=0.5"), absl::Milliseconds(500));
  for (const char* bad : {"--timeout-s=0", "--timeout-s=-1", "--timeout-s=nan", "--timeout-s=inf"})
    EXPECT_THAT(std::string(timeout(bad).status().message()),
                HasSubstr("above 0 and at most 86400"));
}

TEST(SettingsTest, CountTokensTakesNoContextWhichItCannotCount) {
  for (const Command& command : GenerateCommands()) {
    const bool context = std::any_of(command.flags.begin(), command.flags.end(),
                                     [](const Flag& flag) { return flag.name == "context"; });
    EXPECT_EQ(context, command.name != "count-tokens" && command.name != "cancel") << command.name;
  }
}

TEST(StatsTest, NoVerdictWhereNoSloWasAsked) {
  v1::GenerateFinished finished;
  finished.mutable_latency()->set_slo_met(true);
  v1::Slo slo;
  EXPECT_THAT(StatsText(slo, {}, finished), Not(HasSubstr("SLO")));
  slo.set_ttft_ms(200);
  EXPECT_THAT(StatsText(slo, {}, finished), HasSubstr("SLO met"));
  finished.mutable_latency()->set_slo_met(false);
  EXPECT_THAT(StatsText(slo, {}, finished), HasSubstr("SLO missed"));
}

TEST(StatsTest, StatusSaysHowSureItIsOfLevels) {
  v1::GetStatusResponse status;
  EXPECT_EQ(LevelPairsText(status), "");
  v1::LevelPairChance& pair = *status.add_level_pairs();
  pair.set_prompt_level_percent(100);
  pair.set_model_level_percent(60);
  pair.set_chance(0.8125);
  pair.set_spread(0.05);
  pair.set_audits(31.6);
  EXPECT_EQ(LevelPairsText(status),
            "\nPROMPT  MODEL  AGREES         AUDITS\n100 %   60 %   0.812 ± 0.050  32\n");
}

TEST(StatsTest, AnAnswerThatWasCutSaysSo) {
  v1::GenerateFinished finished;
  finished.mutable_usage()->set_completion_tokens(7);
  finished.set_reason(v1::FINISH_REASON_END_OF_TURN);
  EXPECT_EQ(CutNote(finished), "");
  finished.set_reason(v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_THAT(CutNote(finished), AllOf(HasSubstr("cut after 7 tokens"), HasSubstr("--max-tokens")));
  finished.set_reason(v1::FINISH_REASON_CONTEXT_FULL);
  EXPECT_THAT(CutNote(finished), HasSubstr("the window is full"));
}

TEST(StatsTest, CallsAreNamed) {
  v1::GenerateFinished finished;
  EXPECT_EQ(CallsText(finished.tool_calls()), "");
  v1::ToolCall& call = *finished.add_tool_calls();
  call.set_id("i1");
  call.set_name("look");
  call.set_arguments_json(R"({"at": "it"})");
  EXPECT_EQ(CallsText(finished.tool_calls()), "(calls look {\"at\": \"it\"}, id i1)\n");
}

TEST(StatsTest, SaysThatKvWasNotExact) {
  v1::GenerateFinished finished;
  EXPECT_THAT(StatsText({}, {}, finished), Not(HasSubstr("KV")));
  finished.mutable_usage()->set_compressed_kv_tokens(48);
  finished.mutable_usage()->set_other_level_kv_tokens(1);
  const std::string text = StatsText({}, {}, finished);
  EXPECT_THAT(text, HasSubstr("KV of 48 reused tokens had been stored in fewer bits"));
  EXPECT_THAT(text, HasSubstr("KV of 1 reused token had been computed at another level"));
}

TEST(StatsTest, SaysHowTheAnswerWasDrawn) {
  v1::GenerateFinished finished;
  v1::Sampling& sampling = *finished.mutable_sampling();
  sampling.set_temperature(0.7f);
  sampling.set_top_p(0.95f);
  sampling.set_repetition_penalty(1.1f);
  sampling.set_seed(5);
  EXPECT_THAT(StatsText({}, {}, finished),
              HasSubstr("temperature 0.7, top-p 0.95, repetition penalty 1.1, seed 5\n"));
  sampling.Clear();
  sampling.set_temperature(0);
  EXPECT_THAT(StatsText({}, {}, finished), HasSubstr("greedy\n"));
}

TEST(TokensTest, HaveTextInJson) {
  v1::GenerateDelta delta;
  v1::Token& token = *delta.add_tokens();
  token.set_id(3);
  token.set_text(" \"the\"");
  token.set_logprob(-0.5f);
  v1::TokenAlternative& other = *token.add_alternatives();
  other.set_id(4);
  other.set_text("\xE2\x82");
  other.set_logprob(-1);
  EXPECT_EQ(TokensJson(delta.tokens()),
            "{\"tokens\":[{\"id\":3,\"text\":\" \\\"the\\\"\",\"logprob\":-0.5,\"alternatives\":"
            "[{\"id\":4,\"text\":\"\xEF\xBF\xBD\",\"bytes\":[226,130],\"logprob\":-1.0}]}]}");
  EXPECT_EQ(TokensJson({}), "{\"tokens\":[]}");
}

TEST(OutputTest, SizesTimesTables) {
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(1536), "1.5 KiB");
  EXPECT_EQ(Ago(0, 100), "never");
  EXPECT_EQ(Ago(10, 100), "90 s ago");
  EXPECT_EQ(Table({{"A", "B"}, {"long", "x"}}), "A     B\nlong  x\n");
  EXPECT_EQ(Count(1'100'048'384), "1.10 B");
  v1::CountTokensResponse counted;
  counted.set_tokens(3);
  EXPECT_EQ(ToJson(counted), "{\"tokens\":3}");
}

class TokenTest : public ::testing::Test {
 protected:
  TokenTest() {
    std::filesystem::remove_all(config_);
    setenv("XDG_CONFIG_HOME", config_.c_str(), 1);
  }
  ~TokenTest() override {
    std::filesystem::remove_all(config_);
    unsetenv("XDG_CONFIG_HOME");
  }

  // Stores a token as `apps bind` does.
  static std::string Bind(const std::string& app, const std::string& token) {
    const auto file = TokenFile::Create(app);
    EXPECT_TRUE(file.ok() && (*file)->Save(token).ok() && (*file)->MakeDefault().ok());
    return (*file)->moved_app_id();
  }

  const std::string config_ = ::testing::TempDir() + "/withy_cli_config";
  const std::string dir_ = config_ + "/withy";
};

TEST_F(TokenTest, EachAppHasItsOwnAndTheLastBoundIsTheDefault) {
  EXPECT_EQ(ReadDefaultToken(), "");
  EXPECT_TRUE(absl::IsNotFound(ReadToken("mail").status()));
  EXPECT_EQ(Bind("mail", "app_1.a"), "");
  EXPECT_EQ(Bind("notes", "app_2.b"), "");
  EXPECT_EQ(*ReadToken("mail"), "app_1.a");
  EXPECT_EQ(*ReadToken("notes"), "app_2.b");
  EXPECT_EQ(ReadDefaultToken(), "app_2.b");
  // After a renewal the new token replaces the old, invalid one.
  EXPECT_EQ(Bind("mail", "app_1.c"), "");
  EXPECT_EQ(*ReadToken("mail"), "app_1.c");
  EXPECT_EQ(ReadDefaultToken(), "app_1.c");
}

TEST_F(TokenTest, IsKeptForTheOwnerAlone) {
  Bind("mail", "app_1.a");
  EXPECT_EQ(std::filesystem::status(dir_ + "/mail.token").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(TokenTest, NoTokenThatIsValidElsewhereIsOverwritten) {
  std::filesystem::create_directories(dir_);
  std::ofstream(dir_ + "/token") << "app_0.old\n";  // written by a withyctl with a single file
  EXPECT_EQ(ReadDefaultToken(), "app_0.old");
  EXPECT_EQ(Bind("mail", "app_1.a"), "app_0");
  EXPECT_EQ(*ReadToken("app_0"), "app_0.old");
  // An app of the same name on another service.
  EXPECT_EQ(Bind("mail", "app_2.b"), "app_1");
  EXPECT_EQ(*ReadToken("app_1"), "app_1.a");
  EXPECT_EQ(*ReadToken("mail"), "app_2.b");
}

TEST_F(TokenTest, AnEndedTokenIsNotLeftInThePlainFile) {
  std::filesystem::create_directories(dir_);
  std::ofstream(dir_ + "/token") << "app_1.ended\n";
  ASSERT_TRUE((*TokenFile::Create("mail"))->Save("app_1.b").ok());
  EXPECT_EQ(ReadDefaultToken(), "app_1.b");
  ASSERT_TRUE((*TokenFile::Create("notes"))->Save("app_2.c").ok());
  EXPECT_EQ(ReadDefaultToken(), "app_1.b");
}

TEST_F(TokenTest, ThereIsAPlaceBeforeThereIsAToken) {
  { ASSERT_TRUE(TokenFile::Create("mail").ok()); }
  EXPECT_TRUE(std::filesystem::is_empty(dir_)) << "nothing stays of what was not saved";
  std::filesystem::remove_all(config_);
  std::ofstream{config_} << "a file";
  const absl::Status status = TokenFile::Create("mail").status();
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(dir_), HasSubstr("XDG_CONFIG_HOME")));
  for (const char* bad : {"", "../mail", "a b"})
    EXPECT_TRUE(absl::IsInvalidArgument(TokenFile::Create(bad).status())) << bad;
}

TEST_F(TokenTest, NeedsAHome) {
  const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
  unsetenv("XDG_CONFIG_HOME");
  unsetenv("HOME");
  EXPECT_TRUE(absl::IsFailedPrecondition(TokenFile::Create("mail").status()));
  EXPECT_EQ(ReadDefaultToken(), "");
  setenv("HOME", home.c_str(), 1);
}

class ClientTest : public ::testing::Test {
 protected:
  static absl::StatusOr<std::unique_ptr<Client>> Open(const std::string& address,
                                                      const std::string& token = "secret") {
    const std::vector<Flag> flags = ConnectionFlags();
    std::string words[] = {"--address=unix:" + address, "--token=" + token};
    char* pointers[] = {words[0].data(), words[1].data()};
    return Client::Open(*Args::Parse(flags, pointers));
  }
  // Starts a server of `service`.
  std::unique_ptr<grpc::Server> Serve(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(service);
    return builder.BuildAndStart();
  }

  const std::string socket_ = ::testing::TempDir() + "/withy_cli_test.sock";
};

TEST_F(ClientTest, AServiceThatIsAwayIsNamedWithTheRemedy) {
  const auto client = Open("/nonexistent/withy.sock");
  ASSERT_TRUE(client.ok()) << client.status();
  const auto models = (*client)->ListModels();
  EXPECT_EQ(models.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(models.status().message()),
              AllOf(HasSubstr("/nonexistent/withy.sock"), HasSubstr("Start it")));
}

TEST_F(ClientTest, AnotherServiceIsSaidToBeAnother) {
  v1::ContextStore::Service store;
  const auto server = Serve(&store);
  EXPECT_THAT(std::string((*Open(socket_))->ListModels().status().message()),
              AllOf(HasSubstr(socket_), HasSubstr("is not withy's orchestrator")));
}

class UnkindService : public v1::LlmService::Service {
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::GenerateResponse>*) override {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  }
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse*) override {
    return {grpc::StatusCode::UNAUTHENTICATED, "no token: `withyctl apps bind NAME` makes one"};
  }
  grpc::Status Plan(grpc::ServerContext*, const v1::GenerateRequest*, v1::PlanResponse*) override {
    return {grpc::StatusCode::UNIMPLEMENTED, "slo.energy_mj is 5: ask for a time"};
  }
};

TEST_F(ClientTest, WhatFailedIsSaidOnceAndWithTheRemedy) {
  UnkindService service;
  const auto server = Serve(&service);
  const auto client = *Open(socket_);
  EXPECT_THAT(
      std::string(
          client->Generate({}, absl::Milliseconds(300), nullptr, [](const auto&) {}).message()),
      AllOf(HasSubstr("had not finished after 0.3 s"), HasSubstr("--timeout-s")));
  EXPECT_EQ(client->Plan({}).status().message(), "slo.energy_mj is 5: ask for a time");
  EXPECT_THAT(std::string(client->ListModels().status().message()),
              AllOf(HasSubstr("refused"), HasSubstr("--token"), HasSubstr("apps renew")));
  const std::string without = std::string((*Open(socket_, ""))->ListModels().status().message());
  EXPECT_EQ(without.find("no token"), without.rfind("no token")) << without;
}

TEST_F(ClientTest, ATokenThatCannotBeSentIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Open(socket_, "a\nb").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Open(socket_, "a\xFF").status()));
}

TEST(KvStatsTest, TellsWhereKvIsAndWhatItCost) {
  v1::GetStoreInfoResponse info;
  info.set_arena_bytes(256 << 20);
  info.set_arena_withheld_bytes(32 << 20);
  v1::KvFormatBytes* format = info.add_kv();
  format->set_format(v1::KV_FORMAT_Q4);
  format->set_resident_bytes(10 << 20);
  format->set_stored_bytes(20 << 20);
  info.set_shared_chunks(17);
  info.set_shared_saved_bytes(5 << 20);
  info.set_taken_over_chunks(29);
  info.set_opened_resident(3);
  info.set_opened_without(1);
  info.mutable_disk()->set_kv_bytes(1000);
  info.mutable_disk()->set_written_bytes(1040);
  info.mutable_disk()->set_cut_extents(2);
  EXPECT_THAT(KvStatsText(info),
              AllOf(HasSubstr("4 bits"), HasSubstr(Bytes(10 << 20)), HasSubstr(Bytes(32 << 20)),
                    HasSubstr("17"), HasSubstr(Bytes(5 << 20)), HasSubstr("29"), HasSubstr("75 %"),
                    HasSubstr("1.040"), HasSubstr("2 cut")));
}

}  // namespace
}  // namespace withy::cli
