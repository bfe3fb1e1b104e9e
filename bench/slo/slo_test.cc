// Traces, the simulated board, policies and scoring of the end-to-end benchmark, on made-up times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "bench/slo/slo_answers.h"
#include "bench/slo/slo_board.h"
#include "bench/slo/slo_contestants.h"
#include "bench/slo/slo_options.h"
#include "bench/slo/slo_replay.h"
#include "bench/slo/slo_report.h"
#include "bench/slo/slo_sparse.h"
#include "bench/slo/slo_trace.h"
#include "engine/model/testing.h"

namespace withy::bench {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Trace, RequestsFollowTheSkewness) {
  EXPECT_THAT(RequestsByApp(600, 0), Each(100u));
  const auto relaxed = RequestsByApp(600, 0.25);
  EXPECT_TRUE(std::is_sorted(relaxed.begin(), relaxed.end()));
  EXPECT_EQ(std::accumulate(relaxed.begin(), relaxed.end(), size_t{0}), 600u);
  EXPECT_EQ(relaxed, (std::array<size_t, 6>{49, 63, 81, 103, 133, 171}));
  auto tight = RequestsByApp(600, -0.25);
  std::reverse(tight.begin(), tight.end());
  EXPECT_EQ(tight, relaxed);
  EXPECT_EQ(std::accumulate(tight.begin(), tight.end(), size_t{0}), 600u);
}

TEST(Trace, AsksEveryPromptOnceInAnOrderOfTheSeed) {
  const std::vector<TraceRequest> trace = DrawRequests(60, 0.25, 7);
  std::set<std::pair<size_t, size_t>> asked;
  for (const TraceRequest& request : trace) asked.emplace(request.app, request.prompt);
  EXPECT_EQ(asked.size(), 60u);
  const auto order = [](const std::vector<TraceRequest>& requests) {
    std::vector<size_t> apps;
    for (const TraceRequest& request : requests) apps.push_back(request.app);
    return apps;
  };
  EXPECT_EQ(order(trace), order(DrawRequests(60, 0.25, 7)));
  EXPECT_NE(order(trace), order(DrawRequests(60, 0.25, 8)));
  for (size_t app = 0; app < kSloApps; ++app) {
    EXPECT_EQ(RecordIndex(app, 5) % corpus::kTaskCount, static_cast<size_t>(SloApps()[app].task));
  }
}

TEST(Trace, ArrivalsArePoisson) {
  std::vector<TraceRequest> trace(20000);
  SetArrivals(50, 3, &trace);
  std::vector<double> gaps;
  double before = 0;
  for (const TraceRequest& request : trace) {
    gaps.push_back(request.arrival_ms - before);
    before = request.arrival_ms;
    ASSERT_GE(gaps.back(), 0);
  }
  EXPECT_NEAR(before / 20000, 50, 2);
  // Of an exponential distribution e^-1 is longer than the mean.
  const auto longer = std::count_if(gaps.begin(), gaps.end(), [](double gap) { return gap > 50; });
  EXPECT_NEAR(static_cast<double>(longer) / 20000, 0.368, 0.02);
}

// A millisecond a row, at least four a pass.
VariantTimes Times(double scale = 1) {
  VariantTimes times;
  for (size_t i = 0; i < kPassRows.size(); ++i) {
    times.pass_ms[i] = scale * std::max<double>(4, kPassRows[i]);
  }
  return times;
}

TEST(Times, AreInterpolatedAndAddUp) {
  const VariantTimes times = Times();
  EXPECT_EQ(times.PassMs(0, 100), 0);
  EXPECT_EQ(times.PassMs(1, 0), 4);
  EXPECT_EQ(times.PassMs(48, 0), 48);
  EXPECT_EQ(times.PassMs(256, 0), 256);
  EXPECT_EQ(PrefillMs(times, 300), 300);
  const VariantTimes half = Times(0.5);
  const StepPart decode{&half, 1, 0};
  const StepPart prefill{&times, 60, 0};
  EXPECT_EQ(StepMs(std::vector<StepPart>{decode, prefill}), 60.5);
  EXPECT_EQ(StepMs(std::vector<StepPart>{decode, decode}), 2) << "a second row is free";
  VariantTimes deep = times;
  deep.decode_depth_us = 10;
  EXPECT_EQ(deep.PassMs(1, 100), 5);
}

TEST(Times, OfAModelThatCannotBeRunAreScaled) {
  const VariantTimes scaled = ScaledTimes(Times(), {.prefill = 1, .decode = 0.5});
  EXPECT_EQ(scaled.PassMs(1, 0), 2);
  EXPECT_EQ(scaled.PassMs(64, 0), 64);
  EXPECT_EQ(scaled.PassMs(128, 0), 128);
}

TEST(Times, OfTheTlmGoOnBeyondTheirEnds) {
  const TlmTimes times{{{100, 2}, {200, 3}}};
  EXPECT_DOUBLE_EQ(times.Ms(150), 2.5);
  EXPECT_DOUBLE_EQ(times.Ms(400), 5);
  EXPECT_EQ(TlmTimes{}.Ms(400), 0);
}

// 100 tokens, an answer of 5; two prompt levels (50 and 100 %), levels of 25, 50 and 100 % of the
// time. Right: everything at the whole model, the half prompt at 50 %.
class BoardTest : public testing::Test {
 protected:
  BoardTest() {
    for (const double share : {0.25, 0.5, 1.0}) {
      family_.variants.push_back(
          {.percent = static_cast<uint32_t>(100 * share), .times = Times(share), .switch_ms = 0});
    }
    board_.full = Times();
    board_.cost = CalibratedCost(board_.full);
    board_.overhead_ms = 1;
    board_.tlm.points = {{100, 1}, {1000, 10}};
    prompts_ = {{.tokens = 100, .answer_tokens = 5, .text_bytes = 400}};
    answers_.prompt_levels = {50, 100};
    answers_.rows = {{{50, 100}, {false, true, true, false, false, true}}};
    policy_ = {.name = "ours", .family = &family_, .answers = &answers_, .shortens = true};
  }

  static SloCall At(double arrival_ms, double ttft, double tpot) {
    SloCall call;
    call.arrival_ms = arrival_ms;
    call.slo.ttft_ratio = ttft;
    call.slo.tpot_ratio = tpot;
    return call;
  }
  std::vector<SloOutcome> Run(const std::vector<SloCall>& calls) const {
    return RunBoard(board_, policy_, prompts_, calls, 1);
  }

  Family family_;
  BoardFacts board_;
  std::vector<PromptFacts> prompts_;
  Answers answers_;
  Policy policy_;
};

TEST_F(BoardTest, TheFullModelAloneTakesItsIdleTime) {
  const SloOutcome alone = Run({At(0, 1, 1)}).front();
  const policy::Latency idle = IdleFull(board_, prompts_.front());
  EXPECT_EQ(idle.ttft_ms, 101);
  EXPECT_EQ(idle.tpot_ms, 4);
  EXPECT_NEAR(alone.ttft_ms, idle.ttft_ms, 1e-3);
  EXPECT_NEAR(alone.tpot_ms, idle.tpot_ms, 1e-3);
  EXPECT_NEAR(alone.end_to_end_ms, 101 + 4 * 4, 1e-3);
  EXPECT_TRUE(alone.met);
  EXPECT_TRUE(alone.right);
  EXPECT_EQ(alone.model_percent, 100u);
  EXPECT_EQ(alone.tlm_ms, 0) << "nothing is read where the full model is in time";
}

TEST_F(BoardTest, RatiosAreJudgedToWithinFivePerCent) {
  const policy::Latency idle{100, 10, 200};
  policy::Slo slo;
  slo.ttft_ratio = 0.5;
  slo.tpot_ratio = 0.5;
  EXPECT_TRUE(MeetsSlo(slo, idle, {52.4, 5.2, 999}));
  EXPECT_FALSE(MeetsSlo(slo, idle, {52.6, 5, 0}));
  EXPECT_FALSE(MeetsSlo(slo, idle, {50, 5.3, 0}));
  EXPECT_TRUE(MeetsSlo(slo, idle, {50, 0, 0})) << "one token has no TPOT";
  policy::Slo time;
  time.end_to_end_ms = 100;
  EXPECT_FALSE(MeetsSlo(time, idle, {1, 1, 100.1})) << "milliseconds are exact";
}

// At 60 % of TTFT and TPOT the level of 50 % on the whole prompt is in time.
TEST_F(BoardTest, ATighterSloTakesALowerLevelAndPaysTheTlm) {
  const SloOutcome tight = Run({At(0, 0.6, 0.6)}).front();
  EXPECT_TRUE(tight.met);
  EXPECT_EQ(tight.model_percent, 50u);
  EXPECT_EQ(tight.prompt_percent, 100u);
  EXPECT_EQ(tight.tlm_ms, 4);
  EXPECT_NEAR(tight.ttft_ms, 1 + 4 + 50, 1e-3);
  EXPECT_FALSE(tight.right);
}

// At 40 % of TTFT the half prompt at 50 % and the whole one at 25 % are in time.
TEST_F(BoardTest, TheDecisionHeadChoosesAmongWhatIsInTime) {
  std::vector<std::vector<LevelLogits>> logits = {{{.prompt = {2, -2}, .model = {-2, 1, -2}}}};
  policy_.logits = &logits;
  const SloOutcome half = Run({At(0, 0.4, 0.6)}).front();
  EXPECT_EQ(half.prompt_percent, 50u);
  EXPECT_EQ(half.model_percent, 50u);
  EXPECT_TRUE(half.right);
  logits[0][0] = {.prompt = {-2, 2}, .model = {1, -2, -2}};
  const SloOutcome whole = Run({At(0, 0.4, 0.6)}).front();
  EXPECT_EQ(whole.prompt_percent, 100u);
  EXPECT_EQ(whole.model_percent, 25u);
}

// As in the service: shorter prompts are looked at once the full model is late, not beside it.
TEST_F(BoardTest, ExamplesAreLeftOutOnlyWhereTheFullModelIsLate) {
  policy_.leaves_examples_out = true;
  policy_.pair_accuracy[0] = {0.9f, 0.9f, 0.9f, 0.1f, 0.1f, 0.9f};
  prompts_.front().share_without_examples = 50;
  EXPECT_EQ(Run({At(0, 1, 1)}).front().prompt_percent, 100u);
  board_.tlm.points = {{100, 100}, {1000, 1000}};  // reading never pays
  const SloOutcome tight = Run({At(0, 0.6, 1)}).front();
  EXPECT_EQ(tight.prompt_percent, 50u);
  EXPECT_EQ(tight.tlm_ms, 0);
  EXPECT_TRUE(tight.met);
}

// A long answer streams when a prompt comes that can wait: both are in time.
TEST_F(BoardTest, AnAnswerKeepsItsTimeBesideAPromptThatCanWait) {
  policy_.drops_level = true;
  prompts_ = {{.tokens = 20, .answer_tokens = 60, .text_bytes = 80},
              {.tokens = 100, .answer_tokens = 2, .text_bytes = 400}};
  answers_.rows = {{{10, 20}, std::vector<bool>(6, true)}, {{50, 100}, std::vector<bool>(6, true)}};
  SloCall talker = At(0, 1, 0);
  talker.slo = {.tpot_ms = 12};
  SloCall newcomer = At(60, 0, 0);
  newcomer.slo = {.ttft_ms = 1000};
  newcomer.prompt = 1;
  newcomer.app = 1;
  const std::vector<SloOutcome> outcomes = Run({talker, newcomer});
  EXPECT_TRUE(outcomes[0].met) << outcomes[0].tpot_ms;
  EXPECT_TRUE(outcomes[1].met) << outcomes[1].ttft_ms;
}

TEST_F(BoardTest, TheOracleTakesWhatIsRight) {
  policy_.rule = Rule::kOracle;
  const SloOutcome tight = Run({At(0, 0.6, 0.6)}).front();
  EXPECT_TRUE(tight.right);
  EXPECT_TRUE(tight.met);
  EXPECT_EQ(tight.prompt_percent, 50u);
}

TEST_F(BoardTest, PromptPruningKeepsTheLargestModelThatMakesTheTpot) {
  policy_.rule = Rule::kModelByTpot;
  const SloOutcome tight = Run({At(0, 0.32, 0.6)}).front();
  EXPECT_EQ(tight.model_percent, 50u);
  EXPECT_EQ(tight.prompt_percent, 50u);
  EXPECT_TRUE(tight.met);
}

TEST_F(BoardTest, AChanceDecisionIsStillInTime) {
  policy_.rule = Rule::kRandom;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  std::vector<SloCall> calls;
  for (int i = 0; i < 60; ++i) calls.push_back(At(1000.0 * i, 0.6, 0.6));
  for (const SloOutcome& outcome : Run(calls)) {
    EXPECT_TRUE(outcome.met);
    seen.emplace(outcome.prompt_percent, outcome.model_percent);
  }
  EXPECT_EQ(seen.size(), 4u) << "two prompts at 25 and 50 %";
}

TEST_F(BoardTest, TheFullModelIsLateUnderALoadThatLowerLevelsBear) {
  std::vector<SloCall> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(At(40.0 * i, 0.6, 0.6));
  const SloScore ours = ScoreOf(Run(calls));
  policy_.rule = Rule::kFull;
  const SloScore full = ScoreOf(Run(calls));
  EXPECT_EQ(full.slo_met, 0);
  EXPECT_EQ(full.accuracy, 0) << "late is wrong";
  EXPECT_EQ(full.right_anyway, 1);
  EXPECT_GT(ours.slo_met, full.slo_met);
}

TEST_F(BoardTest, SwitchingTakesItsTime) {
  for (Variant& variant : family_.variants) variant.switch_ms = 7;
  policy_.shortens = false;
  const std::vector<SloOutcome> outcomes =
      Run({At(0, 1, 1), At(1000, 0.6, 0.6), At(2000, 0.6, 0.6), At(3000, 0, 0)});
  std::vector<double> switches;
  for (const SloOutcome& outcome : outcomes) switches.push_back(outcome.switch_ms);
  EXPECT_THAT(switches, ElementsAre(0, 7, 0, 7));
  EXPECT_NEAR(outcomes[1].ttft_ms, 1 + 7 + 50, 1e-3);
  EXPECT_NEAR(outcomes[2].ttft_ms, 1 + 50, 1e-3);
}

TEST_F(BoardTest, EveryCallEndsAndNoneIsFasterThanItsOwnWork) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  corpus::Rng rng(kSeed);
  prompts_.clear();
  answers_.rows.clear();
  std::vector<SloCall> calls;
  double now_ms = 0;
  for (size_t i = 0; i < 300; ++i) {
    const auto tokens = static_cast<int32_t>(20 + rng.Below(300));
    prompts_.push_back({.tokens = tokens,
                        .answer_tokens = static_cast<int32_t>(1 + rng.Below(20)),
                        .text_bytes = static_cast<size_t>(4 * tokens)});
    answers_.rows.push_back({{tokens / 2, tokens}, std::vector<bool>(6, true)});
    now_ms += rng.Below(300);
    SloCall call = At(now_ms, 0.2 + 0.1 * rng.Below(9), 0.3 + 0.1 * rng.Below(8));
    call.prompt = i;
    calls.push_back(call);
  }
  policy_.drops_level = true;
  const std::vector<SloOutcome> outcomes = Run(calls);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const SloOutcome& outcome = outcomes[i];
    const VariantTimes times = Times(outcome.fell ? 0.25 : outcome.model_percent / 100.0);
    const auto tokens = answers_.rows[i].tokens[outcome.prompt_percent == 100 ? 1 : 0];
    EXPECT_GE(outcome.ttft_ms, 1 + PrefillMs(times, tokens) + outcome.tlm_ms - 1e-3);
    EXPECT_GE(outcome.end_to_end_ms, outcome.ttft_ms);
    EXPECT_EQ(outcome.tpot_ms > 0, prompts_[i].answer_tokens > 1);
  }
  const std::vector<SloOutcome> again = Run(calls);
  for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_EQ(outcomes[i].ttft_ms, again[i].ttft_ms);
}

TEST(Options, WhatCannotBeHadIsRefusedByFlagAndValue) {
  const SloOptions usual{.alphas = {"0", "0.25"}, .tables = {"grid"}};
  EXPECT_TRUE(CheckOptions(usual).ok());
  const auto refusal = [&](const auto& change) {
    SloOptions options = usual;
    change(options);
    return std::string(CheckOptions(options).message());
  };
  using W = SloOptions&;
  for (const char* alpha : {"nan", "inf", "5.5", "-6", "x", ""}) {
    EXPECT_THAT(refusal([&](W w) { w.alphas = {alpha}; }),
                HasSubstr(absl::StrCat("--alphas: \"", alpha, "\"")));
  }
  EXPECT_EQ(refusal([](W w) { w.real = {"0.5"}; }),
            "--real: \"0.5\" is none of --alphas (0, 0.25) nor all");
  EXPECT_EQ(refusal([](W w) { w.real = {"all"}; }), "");
  EXPECT_THAT(refusal([](W w) { w.tables = {"gird"}; }),
              HasSubstr("--tables: \"gird\" is none of grid, e2e"));
  EXPECT_THAT(refusal([](W w) { w.tables = {"tlms"}; }), HasSubstr("--tlms NAME=FILE.gguf"));
  EXPECT_EQ(refusal([](W w) { w.tables = {"all"}; }), "") << "those that there are files for";
  EXPECT_THAT(refusal([](W w) { w.tlms = {"small"}; }), HasSubstr("\"small\" is not NAME="));
  EXPECT_THAT(refusal([](W w) { w.tlms = {"a=/none.gguf"}; }), HasSubstr("--tlms /none.gguf"));
  EXPECT_THAT(refusal([](W w) {
                w.files = {{"fine", "/none.gguf"}};
              }),
              HasSubstr("--fine /none.gguf"));
  EXPECT_THAT(refusal([](W w) { w.calls = "/none/calls"; }), HasSubstr("/none/calls"));
  EXPECT_THAT(refusal([](W w) { w.load = 0; }), HasSubstr("--load is 0"));
  EXPECT_THAT(refusal([](W w) { w.load = std::nan(""); }), HasSubstr("--load is nan"));
  EXPECT_THAT(refusal([](W w) { w.requests = 0; }), HasSubstr("--requests is 0"));
  EXPECT_THAT(refusal([](W w) { w.rounds = -1; }), HasSubstr("--rounds is -1"));
  EXPECT_THAT(refusal([](W w) { w.threads = 0; }), HasSubstr("--threads is 0"));
}

TEST(Headline, ComparesWhatRanForRealWithSimulatedBaselines) {
  const std::vector<Policy> policies = {
      {.name = "ours"},
      {.name = "a"},
      {.name = "chance", .rule = Rule::kRandom, .as_published = true},
      {.name = "a, as published", .reference = true, .as_published = true},
      {.name = "full", .rule = Rule::kFull, .reference = true}};
  const auto score = [](double accuracy) {
    SloScore made;
    made.accuracy = accuracy;
    made.slo_met = 1;
    made.right_anyway = 0.9;
    return made;
  };
  TraceResult simulated{.alpha = "0.25",
                        .simulated = {score(0.9), score(0.1), score(0.1), score(0.1), score(0)}};
  TraceResult real{.alpha = "0",
                   .simulated = {score(0.8), score(0.6), score(0.4), score(0.3), score(0.2)}};
  nlohmann::json result;
  AddHeadline({simulated, real}, policies, 0.03, &result);
  EXPECT_NEAR(result["accuracy"].get<double>(), 0.85, 1e-9);
  EXPECT_EQ(result["tlm_cost_of_full_ttft"].get<double>(), 0.03);
  EXPECT_EQ(result["through_the_service"].get<bool>(), false);
  real.ran = true;
  real.real = score(0.75);
  real.real.slo_met = 0.97;
  real.real_tlm_share = 0.04;
  result.clear();
  AddHeadline({simulated, real}, policies, 0.03, &result);
  EXPECT_NEAR(result["accuracy"].get<double>(), 0.75, 1e-9);
  EXPECT_NEAR(result["slo_met"].get<double>(), 0.97, 1e-9);
  EXPECT_NEAR(result["gain_over_baseline_mean_points"].get<double>(), 25, 1e-9)
      << "the reference is no baseline";
  EXPECT_NEAR(result["gain_over_best_baseline_points"].get<double>(), 15, 1e-9);
  EXPECT_NEAR(result["gain_over_published_mean_points"].get<double>(), 40, 1e-9);
  EXPECT_NEAR(result["gain_over_best_published_points"].get<double>(), 35, 1e-9)
      << "chance has one rule only";
  EXPECT_EQ(result["tlm_cost_of_full_ttft"].get<double>(), 0.04);
  EXPECT_NEAR(result["accuracy_by_baseline"]["a"].get<double>(), 0.6, 1e-9);
  EXPECT_NEAR(result["simulated_accuracy"].get<double>(), 0.8, 1e-9);
  EXPECT_NEAR(result["full_accuracy_whenever"].get<double>(), 0.9, 1e-9);
}

TEST(Shares, OfPartsOfALayer) {
  engine::ModelInfo info;
  info.d_model = 64;
  info.head_dim = 16;
  info.heads = 4;
  info.kv_heads = 4;
  info.d_ff = 128;
  info.vocab_size = 100;
  // One layer: 4 * 64 * 64 weights of attention, 3 * 64 * 128 of neurons; the head beside it.
  info.levels = {
      {.percent = 100, .weight_bytes = 0, .flops_per_token = 2 * (16384 + 24576 + 6400)}};
  EXPECT_DOUBLE_EQ(ShareOfParts(info, 1, 1).decode, 1);
  EXPECT_NEAR(ShareOfParts(info, 1, 0).decode, (16384 + 6400) / 47360.0, 1e-9);
  EXPECT_NEAR(ShareOfParts(info, 0.5, 0.5).prefill, (20480 + 6400) / 47360.0, 1e-9);
}

// At full density the float decoder says what the engine says; with few neurons it does not.
TEST(Sparse, DenseIsTheEngine) {
  const engine::TestFolder folder;
  const std::string path = engine::WriteTiny(folder, engine::TinyShape(), engine::GgmlType::kF32);
  const std::unique_ptr<engine::Model> dense = engine::OpenTiny(folder, path);
  ASSERT_NE(dense, nullptr);
  const auto floats = FloatModel::Open(path);
  ASSERT_TRUE(floats.ok()) << floats.status();
  int right = 0, sparse_right = 0;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    const std::vector<int32_t> prompt = engine::SomeTokens(20, dense->info().vocab_size, seed);
    const auto answer = engine::GreedyDecode(*dense, prompt, 6);
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto judged = JudgeSparse(**floats, *dense, prompt, *answer, {0.01, 1.0});
    ASSERT_TRUE(judged.ok()) << judged.status();
    sparse_right += (*judged)[0] ? 1 : 0;
    right += (*judged)[1] ? 1 : 0;
    std::vector<int32_t> wrong = *answer;
    wrong[3] = wrong[3] == 5 ? 6 : 5;
    EXPECT_FALSE((*JudgeSparse(**floats, *dense, prompt, wrong, {1.0}))[0]);
  }
  EXPECT_GE(right, 4) << "8-bit KV may tip a near tie";
  EXPECT_LT(sparse_right, right);
  const auto used = UsedParts(path);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_DOUBLE_EQ(used->attention, 1);
  EXPECT_DOUBLE_EQ(used->neurons, 1);
}

// An answer whose level fell is right where every level that it used is.
TEST(Answers, AreJudgedByTheLevelsThatTheyUsed) {
  Family family;
  family.variants.resize(2);
  family.variants[0].percent = 50;
  Answers answers{.prompt_levels = {40, 100}, .rows = {}};
  answers.rows.push_back({{10, 20}, {false, true, true, true}});
  const auto right = [&](uint32_t prompt_percent, std::vector<uint32_t> levels) {
    return RightAt(answers, family, 0, prompt_percent, levels);
  };
  EXPECT_TRUE(right(40, {100}));
  EXPECT_FALSE(right(40, {50}));
  EXPECT_FALSE(right(40, {100, 50}));
  EXPECT_TRUE(right(100, {100, 50}));
  EXPECT_FALSE(right(70, {50})) << "as 40 %, the next that the table has";
  EXPECT_FALSE(right(20, {50})) << "as the lowest that the table has";
  EXPECT_FALSE(right(100, {30})) << "a level that the table lacks";
}

TEST(Answers, OfOwnPromptsAreTheModelsOwn) {
  const engine::TestFolder folder;
  const std::string model = "models/withy-pocket-q8_0.gguf";
  const std::string file = folder / "prompts.jsonl";
  const auto write = [&](size_t lines) {
    std::ofstream out(file);
    for (size_t i = 0; i < lines; ++i) {
      out << R"({"prompt": "Question )" << i << R"(: what is )" << i << R"( plus 5?"})"
          << "\n";
    }
  };
  AnswerOptions options{.dir = folder / "work", .threads = 1, .progress = nullptr};
  write(2 * kSloApps + 3);
  const auto set = OwnPrompts(model, file, 2, options);
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ(set->prompts.size(), 2 * kSloApps);
  EXPECT_TRUE(set->own_answers);
  for (size_t app = 0; app < kSloApps; ++app) {
    for (const size_t nth : {0, 1}) {
      const corpus::Record& record = set->prompts[set->Index(app, nth)].record;
      EXPECT_THAT(record.messages.back().content,
                  HasSubstr(absl::StrCat("Question ", app + nth * kSloApps, ":")));
      EXPECT_FALSE(record.answer.empty());
    }
  }
  // The full level says what it says.
  const auto answers =
      JudgeAll({.path = model, .levels = true, .instead = {}}, *set, {100}, {}, "whole", options);
  ASSERT_TRUE(answers.ok()) << answers.status();
  for (const Answers::Row& row : answers->rows) EXPECT_TRUE(row.right.back());
  write(2 * kSloApps - 1);
  EXPECT_THAT(OwnPrompts(model, file, 2, options).status().message(),
              HasSubstr("give 12 lines or more"));
}

// Short prompts take 0.5 ms a token, long ones 0.25, and the way 2 ms; answers 3 ms a token and 4
// more for the first.
TEST(ServiceTimesTest, TakesWhatTheNearestPromptsAndAnswersAsLongTook) {
  ServiceTimes times;
  for (int i = 0; i < 20; ++i) {
    const double stall_ms = i == 7 ? 100 : 0;
    for (const auto& [tokens, token_ms] : {std::pair(100 + i, 0.5), std::pair(400 + i, 0.25)}) {
      times.ttft_ms.emplace_back(tokens, 2 + tokens * token_ms + stall_ms);
      times.overhead_ms.push_back(2);
      const double steps = 3 + i % 12;
      times.decode_ms.emplace_back(steps, 4 + 3 * steps + stall_ms);
    }
  }
  PromptFacts prompt;
  prompt.tokens = 90;
  EXPECT_DOUBLE_EQ(times.Idle(prompt, 5).ttft_ms, 2 + 45);
  prompt.tokens = 440;
  EXPECT_DOUBLE_EQ(times.Idle(prompt, 5).ttft_ms, 2 + 110);
  EXPECT_NEAR(times.Idle(prompt, 5).tpot_ms, 3 + 4 / 4.0, 1e-9);
  EXPECT_NEAR(times.Idle(prompt, 2).tpot_ms, 3 + 4, 1e-9);
  EXPECT_NEAR(times.Idle(prompt, 41).end_to_end_ms, 112 + 40 * 3 + 4, 1e-9);
  ServiceTimes slower = times;
  for (auto& [tokens, ms] : slower.ttft_ms) ms = 2 + (ms - 2) * 2;
  for (auto& [steps, ms] : slower.decode_ms) ms *= 2;
  EXPECT_DOUBLE_EQ(IdleBetween(times, slower, prompt, 5).ttft_ms, 2 + 165);
  EXPECT_NEAR(IdleBetween(times, slower, prompt, 5).tpot_ms, 6, 1e-9);
}

}  // namespace
}  // namespace withy::bench
