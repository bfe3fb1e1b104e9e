#include "policy/draft/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "policy/constants.h"

namespace withy::policy {
namespace {

constexpr double kPlainMs = 10;

TEST(SpeculationModeTest, AllowsWhatItNames) {
  using enum DraftSourceKind;
  EXPECT_TRUE(Allows(SpeculationMode::kAuto, kDraft));
  EXPECT_FALSE(Allows(SpeculationMode::kOff, kLookup));
  EXPECT_TRUE(Allows(SpeculationMode::kPrefix, kPrefix));
  EXPECT_FALSE(Allows(SpeculationMode::kPrefix, kLookup));
}

// Whatever passes are tried and whatever they give, as long as only those are tried that can be
// afforded.
TEST(LossLimitTest, BoundsTheLoss) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 100; ++round) {
    constexpr double kFirst = 2;
    LossLimit limit(kFirst);
    double plain_ms = 0, ms = 0;
    const double luck = uniform(random) * uniform(random);
    for (int pass = 0; pass < 3000; ++pass) {
      const double wish_ms = kPlainMs * (1 + 3 * uniform(random));
      double tokens = 1, took_ms = kPlainMs;
      if (limit.Affords(wish_ms, kPlainMs)) {
        took_ms = wish_ms;
        if (uniform(random) < luck) tokens += 1 + static_cast<double>(random() % 4);
      }
      limit.OnPass(tokens, took_ms, kPlainMs);
      plain_ms += tokens * kPlainMs;
      ms += took_ms;
      ASSERT_LE(ms, plain_ms * (1 + kMostLoss) + kFirst * kPlainMs + 1e-6);
    }
  }
}

TEST(SourceGainTest, PausesLongerAndLongerWhileItDoesNotPay) {
  SourceGain gain;
  EXPECT_TRUE(gain.Asked());
  double tried_at = 0;
  std::vector<double> pauses;
  for (double token = 0; token < 4000; ++token) {
    if (gain.Asked()) {
      gain.OnDrafted(1, 2 * kPlainMs, kPlainMs);
      pauses.push_back(token - tried_at);
      tried_at = token;
    } else {
      gain.OnPaused(1);
    }
  }
  EXPECT_LT(pauses.size(), 16u);
  EXPECT_NEAR(pauses.back(), kLongestPauseTokens, 1);
  for (int i = 0; i < 30; ++i) gain.OnDrafted(4, 2 * kPlainMs, kPlainMs);
  EXPECT_TRUE(gain.Asked()) << "it pays again";
  EXPECT_GT(gain.gain(), 1.5);
}

TEST(SourceGainTest, IsDueUntilItWasTriedAndAgainLongAfter) {
  SourceGain gain;
  EXPECT_TRUE(gain.Due());
  gain.OnDrafted(2, kPlainMs, kPlainMs);
  EXPECT_FALSE(gain.Due());
  gain.OnPaused(kTrialTokens - 1);
  EXPECT_FALSE(gain.Due());
  gain.OnPaused(1);
  EXPECT_TRUE(gain.Due());
  for (int i = 0; i < 30; ++i) gain.OnDrafted(1, 2 * kPlainMs, kPlainMs);
  gain.OnPaused(kTrialTokens);
  EXPECT_FALSE(gain.Due()) << "its own pauses say when it is tried that does not pay";
  SourceGain unknown;
  unknown.OnVainAsk();
  EXPECT_FALSE(unknown.Due());
  unknown.OnPaused(kTrialTokens);
  EXPECT_TRUE(unknown.Due());
}

// One refused draft does not end a source that was never tried before; a few do.
TEST(SourceGainTest, IsNotGivenUpAtOnce) {
  SourceGain gain;
  gain.OnDrafted(1, 1.4 * kPlainMs, kPlainMs);
  EXPECT_TRUE(gain.Asked());
  int tries = 1;
  for (; gain.Asked() && tries < 10; ++tries) gain.OnDrafted(1, 1.4 * kPlainMs, kPlainMs);
  EXPECT_LE(tries, 4);
}

// One context on a board: a chain of drafted tokens each pass, of which the first
// accepted(token) are right; the control decides how many of them are verified.
struct Simulated {
  double speedup = 0;
  double verified = 0;  // drafted tokens a token
};
Simulated Simulate(const RowCosts& board, RowCosts costs, int tokens, double noise, uint32_t seed,
                   const std::function<int(int token, std::mt19937& random)>& accepted) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> wobble(0, noise);
  SpeculationState app(kFirstAppCredit), context(kFirstContextCredit);
  const CallSpeculation call{context, app};
  double plain_ms = 0, ms = 0, verified = 0;
  for (int token = 0; token < tokens;) {
    const int right = accepted(token, random);
    DraftTree tree;
    for (int i = 0; i < 8; ++i) {
      const DraftOrigin origin{DraftSourceKind::kLookup, 4};
      tree.Add(i - 1, i, call.Confidence(origin), origin);
    }
    std::vector<double> cumulative;
    for (const DraftNode& node : tree.nodes()) cumulative.push_back(node.cumulative);
    const double expected = costs.PlainMs(kPlainMs);
    const TreeBudget budget = costs.since_plain() >= kPassesBetweenPlain
                                  ? TreeBudget{}
                                  : PlanPass(costs, cumulative, 0, expected, 0, call);
    const int gained = std::min(right, budget.nodes);
    // The first drafted token is compared even where it is not verified.
    const int seen = std::max(1, std::min(budget.nodes, gained + 1));
    for (int i = 0; i < seen; ++i) {
      call.Observe(tree.nodes()[static_cast<size_t>(i)].origin, i < right);
    }
    const double took = kPlainMs * board.Ratio(1 + budget.nodes) * wobble(random);
    costs.Observe(1 + budget.nodes, took, kPlainMs);
    call.OnPass(1 + gained, budget.nodes == 0 ? expected : took, expected);
    ms += took;
    plain_ms += (1 + gained) * kPlainMs * wobble(random);
    verified += budget.nodes;
    token += 1 + gained;
  }
  return {.speedup = plain_ms / ms, .verified = verified / tokens};
}

const RowCosts kDear(std::vector<RowCost>{{1, 10}, {2, 13}, {4, 19}, {8, 31}});
const RowCosts kCheap(std::vector<RowCost>{{1, 10}, {2, 10.4}, {4, 11}, {8, 13}, {16, 18}});

TEST(SpeculationTest, IsNeverMuchSlower) {
  const auto useless = [](int, std::mt19937&) { return 0; };
  const auto by_chance = [](int, std::mt19937& random) { return random() % 8 == 0 ? 1 : 0; };
  // Pays for a while, then never again; and in turns that punish what was just learnt.
  const auto turns = [](int token, std::mt19937&) { return token < 200 ? 8 : 0; };
  const auto cheats = [](int token, std::mt19937&) { return token / 16 % 2 == 0 ? 4 : 0; };
  const std::vector<std::pair<std::string, std::function<int(int, std::mt19937&)>>> drafts = {
      {"useless", useless}, {"by chance", by_chance}, {"turns", turns}, {"cheats", cheats}};
  for (const auto& [name, accepted] : drafts) {
    for (const RowCosts* board : {&kDear, &kCheap}) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(name + (board == &kDear ? ", dear rows, seed " : ", cheap rows, seed ") +
                     std::to_string(seed));
        EXPECT_GE(Simulate(*board, *board, 1000, 0, seed, accepted).speedup, 0.97);
        EXPECT_GE(Simulate(*board, RowCosts(), 1000, 0.05, seed, accepted).speedup, 0.96)
            << "on a board that is not calibrated";
      }
    }
  }
}

TEST(SpeculationTest, TakesWhatThereIsToGain) {
  const auto copies = [](int token, std::mt19937&) { return token % 50 < 40 ? 8 : 0; };
  EXPECT_GT(Simulate(kCheap, kCheap, 1000, 0.02, 1, copies).speedup, 2.5);
  EXPECT_GT(Simulate(kDear, kDear, 1000, 0.02, 1, copies).speedup, 1.3);
  const auto half = [](int, std::mt19937& random) { return static_cast<int>(random() % 3); };
  EXPECT_GT(Simulate(kCheap, kCheap, 1000, 0.02, 1, half).speedup, 1.4);
  const auto useless = [](int, std::mt19937&) { return 0; };
  EXPECT_LT(Simulate(kCheap, kCheap, 2000, 0.02, 1, useless).verified, 0.2);
}

// Calls of one app that share passes, some drafted well, some in vain: none of them is much slower
// than without, since a pass is as wide for all of them.
TEST(SpeculationTest, NoCallPaysForItsNeighbours) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr size_t kCalls = 4;
    constexpr int kPasses = 1500;
    const RowCosts& board = seed % 2 == 0 ? kDear : kCheap;
    // One app a call, or one for all.
    std::vector<SpeculationState> apps(seed % 3 == 0 ? 1 : kCalls,
                                       SpeculationState(kFirstAppCredit));
    std::vector<SpeculationState> contexts(kCalls, SpeculationState(kFirstContextCredit));
    std::array<double, kCalls> tokens{}, took_ms{};
    const double plain_ms = kPlainMs * board.Ratio(kCalls);
    for (int pass = 0; pass < kPasses; ++pass) {
      std::array<std::vector<double>, kCalls> cumulative;
      std::vector<PassTree> trees;
      const double draft_ms = random() % 3 == 0 ? 0.3 * plain_ms : 0;
      for (size_t i = 0; i < kCalls; ++i) {
        double confidence = 1;
        for (auto node = random() % 8; node > 0; --node) {
          cumulative[i].push_back(confidence *= 0.8);
        }
        trees.push_back({.call = {contexts[i], apps[i % apps.size()]},
                         .cumulative = cumulative[i],
                         .plain_ms = plain_ms,
                         .nodes = static_cast<int32_t>(cumulative[i].size())});
      }
      for (PassTree& tree : trees) tree.draft_ms = draft_ms;
      if (!AllAfford(trees, 1)) {
        for (PassTree& tree : trees) tree.draft_ms = 0;
      }
      FitTogether(board, 0, trees);
      int32_t rows = kCalls;
      for (const PassTree& tree : trees) rows += tree.nodes;
      const double ms = plain_ms * board.Ratio(rows) / board.Ratio(kCalls) + trees[0].draft_ms;
      for (size_t i = 0; i < kCalls; ++i) {
        // The first call's drafts are right, the others' are not.
        const double gained = 1 + (i == 0 ? trees[i].nodes : 0);
        trees[i].call.OnPass(gained, ms, plain_ms);
        tokens[i] += gained;
        took_ms[i] += ms;
      }
    }
    for (size_t i = 0; i < kCalls; ++i) {
      EXPECT_GE(tokens[i] * plain_ms / took_ms[i], 0.97) << "call " << i;
    }
  }
}

// As many passes as the credit allows: with one more, a call could not afford that all is refused.
TEST(SpeculationTest, ADraftModelIsAskedForNoMoreThanIsAffordable) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 300; ++round) {
    std::vector<SpeculationState> states;
    for (int i = 0; i < 4; ++i) states.emplace_back(3 * uniform(random));
    std::vector<PassTree> trees;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      trees.push_back({.call = {states[i], states[3]},
                       .cumulative = {},
                       .plain_ms = kPlainMs,
                       .nodes = static_cast<int32_t>(random() % 3)});
    }
    const DraftedStep step{.rows = static_cast<int32_t>(trees.size() + random() % 2),
                           .asked = 1 + static_cast<int32_t>(random() % trees.size()),
                           .before_ms = random() % 2 == 0 ? 0 : kPlainMs * uniform(random),
                           .pass_ms = kPlainMs * uniform(random)};
    constexpr int32_t kMost = 12;
    const int32_t passes = AffordablePasses(kDear, trees, step, kMost);
    int32_t verified = step.rows;
    for (const PassTree& tree : trees) verified += tree.nodes;
    const auto affords = [&](int32_t of_model) {
      for (PassTree& tree : trees) tree.draft_ms = step.before_ms + of_model * step.pass_ms;
      return AllAfford(trees,
                       kDear.Ratio(verified + of_model * step.asked) / kDear.Ratio(step.rows));
    };
    EXPECT_TRUE(passes == 0 || affords(passes)) << round;
    EXPECT_FALSE(passes < kMost && affords(passes + 1)) << round;
  }
}

}  // namespace
}  // namespace withy::policy
