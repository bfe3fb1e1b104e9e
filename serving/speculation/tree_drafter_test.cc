#include "serving/speculation/tree_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/test_seed.h"
#include "engine/model/testing.h"

namespace withy::serving {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::Pair;

bool Never() { return false; }

// The tree of one call.
absl::StatusOr<GrownTree> One(TreeDrafter& drafter, const TreeRequest& request,
                              const std::function<bool()>& cancelled) {
  auto grown = drafter.Draft({&request, 1}, cancelled);
  if (!grown.ok()) return grown.status();
  return std::move(grown->front());
}

class TreeDrafterTest : public testing::Test {
 protected:
  std::vector<int32_t> Tokens(size_t count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    const auto vocab = static_cast<uint32_t>(model_->info().vocab_size);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
    return tokens;
  }
  static TreeRequest Ask(std::span<const int32_t> tokens, int32_t known = 0, uint64_t call = 1) {
    return {.call_id = call,
            .known_tokens = known,
            .tokens = tokens,
            .sampling = {},
            .limits = {.max_nodes = 8, .max_depth = 8, .alpha = 0, .branch_threshold = 0.02}};
  }
  static void ExpectSame(const GrownTree& a, const GrownTree& b) {
    ASSERT_EQ(a.tree.size(), b.tree.size());
    for (size_t i = 0; i < a.tree.nodes().size(); ++i) {
      EXPECT_EQ(a.tree.nodes()[i].token, b.tree.nodes()[i].token);
      EXPECT_EQ(a.tree.nodes()[i].parent, b.tree.nodes()[i].parent);
      EXPECT_EQ(a.tree.nodes()[i].confidence, b.tree.nodes()[i].confidence) << "stale KV";
    }
  }

  engine::TestFolder folder_;
  engine::PassNumbers passes_;
  std::unique_ptr<engine::Model> model_ = engine::OpenTiny(
      folder_, engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0));
};

TEST_F(TreeDrafterTest, TheFirstBranchIsWhatTheModelDecodes) {
  const std::vector<int32_t> tokens = Tokens(40, 1);
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  TreeRequest request = Ask(tokens);
  request.limits = {.max_nodes = 6, .max_depth = 6, .alpha = 0, .branch_threshold = 1.1};
  const auto grown = One(drafter, request, Never);
  ASSERT_TRUE(grown.ok()) << grown.status();
  const auto decoded = engine::GreedyDecode(*model_, tokens, 6);
  ASSERT_TRUE(decoded.ok());
  EXPECT_THAT(grown->tree.PathTo(5), ElementsAreArray(*decoded));
  EXPECT_EQ(grown->passes, 6);
}

TEST_F(TreeDrafterTest, TellsWhatItCaughtUpAndKeepsItsPasses) {
  const std::vector<int32_t> tokens = Tokens(40, 1);
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  TreeRequest request = Ask(tokens);
  request.limits = {.max_nodes = 6, .max_depth = 6, .max_passes = 2, .alpha = 0};
  const auto first = One(drafter, request, Never);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->passes, 2);
  EXPECT_EQ(first->caught_up.tokens, 39) << "all but the last one, which the first pass computes";
  EXPECT_GT(first->caught_up.ms, 0);
  EXPECT_EQ(One(drafter, request, Never)->caught_up.tokens, 0);
}

// A request that runs out of time while it catches up leaves what it has computed.
TEST_F(TreeDrafterTest, CatchesUpInPieces) {
  const std::vector<int32_t> tokens = Tokens(60, 1);
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  EXPECT_FALSE(One(drafter, Ask(tokens), [n = 0]() mutable { return n++ == 2; }).ok());
  const auto grown = One(drafter, Ask(tokens), Never);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->caught_up.tokens, 59 - 2 * 16);
}

// Whatever was drafted before, what a call gets depends on its tokens alone.
TEST_F(TreeDrafterTest, KvIsNeverStale) {
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  std::mt19937 random(5);
  std::vector<int32_t> tokens = Tokens(30, 2);
  int32_t known = 0;
  for (int step = 0; step < 25; ++step) {
    SCOPED_TRACE(step);
    // Some steps are drafted for nobody, or cut off; some tokens come back.
    const auto more = std::span<const int32_t>(tokens).subspan(static_cast<size_t>(known));
    if (random() % 4 == 0) {
      One(drafter, Ask(more, known), [n = 0]() mutable { return n++ == 2; }).IgnoreError();
    }
    const auto grown = One(drafter, Ask(more, known), Never);
    ASSERT_TRUE(grown.ok()) << grown.status();
    ASSERT_FALSE(grown->unknown);
    TreeDrafter fresh(*model_, 512, passes_, Clock::Real());
    ExpectSame(*grown, *One(fresh, Ask(tokens), Never));
    known = static_cast<int32_t>(tokens.size());
    if (random() % 5 == 0) known -= 7;
    tokens.resize(static_cast<size_t>(known));
    for (const int32_t token : Tokens(1 + random() % 6, static_cast<uint32_t>(step) + 10)) {
      tokens.push_back(token);
    }
  }
}

// Takes the processors back now and then, and ends after some turns.
class RandomTurns final : public Turns {
 public:
  RandomTurns(int turns, uint32_t seed) : left_(turns), random_(seed) {}
  bool Begin() override {
    EXPECT_FALSE(std::exchange(open_, true));
    wanted_ = random_() % 3 == 0;
    if (left_-- > 0) return true;
    open_ = false;
    return false;
  }
  const std::atomic<bool>& wanted() const override { return wanted_; }
  void End() override { EXPECT_TRUE(std::exchange(open_, false)); }

 private:
  int left_;
  std::mt19937 random_;
  std::atomic<bool> wanted_{false};
  bool open_ = false;
};

// Whatever grew in turns, wherever these ended, and whichever way the answer took: the draft says
// of each token what a new one says.
TEST_F(TreeDrafterTest, WhatGrewWhileTheTargetWaitedStaysWhereTheAnswerGoesOn) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  std::vector<int32_t> tokens = Tokens(30, 2);
  int32_t known = 0, kept = 0, grown_in_turns = 0, most_passes = 0;
  for (int step = 0; step < 40; ++step) {
    SCOPED_TRACE(step);
    const auto asked = [&] {
      TreeRequest request =
          Ask(std::span<const int32_t>(tokens).subspan(static_cast<size_t>(known)), known);
      request.limits.max_nodes = 20;
      request.limits.leaves_per_pass = 3;
      return request;
    };
    TreeRequest request = asked();
    request.limits.max_passes = 1 + static_cast<int32_t>(random() % 2);
    const auto drafted = One(drafter, request, Never);
    ASSERT_TRUE(drafted.ok()) << drafted.status();
    ASSERT_FALSE(drafted->unknown);
    EXPECT_LE(drafted->window_kept, drafted->window_drafted);
    most_passes = std::max(most_passes, drafted->passes);
    kept += drafted->window_kept;
    grown_in_turns += drafted->window_drafted;
    for (int32_t node = 0; node < drafted->tree.size(); ++node) {
      std::vector<int32_t> path = tokens;
      for (const int32_t token : drafted->tree.PathTo(node)) path.push_back(token);
      const int32_t last = path.back();
      path.pop_back();
      TreeDrafter fresh(*model_, 512, passes_, Clock::Real());
      TreeRequest behind = Ask(path);
      behind.limits.max_passes = 1;
      const auto expected = One(fresh, behind, Never);
      const int32_t found = expected->tree.Find(-1, last);
      ASSERT_GE(found, 0) << "node " << node;
      EXPECT_EQ(drafted->tree.nodes()[static_cast<size_t>(node)].confidence,
                expected->tree.nodes()[static_cast<size_t>(found)].confidence)
          << "node " << node << ": stale KV";
    }
    known = static_cast<int32_t>(tokens.size());
    RandomTurns turns(static_cast<int>(random() % 12), static_cast<uint32_t>(random()));
    const TreeRequest grows = asked();
    const auto caught_up = drafter.Grow({&grows, 1}, turns);
    ASSERT_TRUE(caught_up.ok()) << caught_up.status();
    EXPECT_EQ(caught_up->tokens, 0) << "the draft before it has done that";
    // The answer goes along the tree for a while, and often ends with another token.
    policy::DraftTree tree = drafted->tree;
    for (int32_t at = -1, more = static_cast<int32_t>(random() % 4); more > 0; --more) {
      std::vector<int32_t> next;
      for (int32_t i = 0; i < tree.size(); ++i) {
        if (tree.nodes()[static_cast<size_t>(i)].parent == at) next.push_back(i);
      }
      if (next.empty()) break;
      at = next[random() % next.size()];
      tokens.push_back(tree.nodes()[static_cast<size_t>(at)].token);
    }
    if (tokens.size() == static_cast<size_t>(known) || random() % 3 == 0) {
      tokens.push_back(Tokens(1, static_cast<uint32_t>(random()))[0]);
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(grown_in_turns, kept);
  EXPECT_LE(most_passes, 2);
}

TEST_F(TreeDrafterTest, ACallThatIsNotHereIsAskedForAgain) {
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  const std::vector<int32_t> tokens = Tokens(10, 3);
  EXPECT_TRUE(One(drafter, Ask(tokens, 5), Never)->unknown);
  for (uint64_t call = 1; call <= TreeDrafter::kCalls + 1; ++call) {
    EXPECT_FALSE(One(drafter, Ask(tokens, 0, call), Never)->unknown);
  }
  EXPECT_TRUE(One(drafter, Ask(tokens, 10, 1), Never)->unknown) << "others took its place";
  EXPECT_FALSE(One(drafter, Ask(tokens, 10, 5), Never)->unknown);
}

TEST_F(TreeDrafterTest, NothingIsExpectedBehindTheEndOfTheAnswer) {
  const std::vector<int32_t> tokens = Tokens(40, 1);
  TreeDrafter drafter(*model_, 512, passes_, Clock::Real());
  TreeRequest request = Ask(tokens);
  request.limits = {.max_nodes = 6, .max_depth = 6, .alpha = 0, .branch_threshold = 1.1};
  const auto decoded = engine::GreedyDecode(*model_, tokens, 3);
  ASSERT_TRUE(decoded.ok());
  ASSERT_NE((*decoded)[0], (*decoded)[2]);
  ASSERT_NE((*decoded)[1], (*decoded)[2]);
  request.sampling.unpenalized = {(*decoded)[2]};
  const auto grown = One(drafter, request, Never);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->tree.size(), 3);
  EXPECT_EQ(grown->passes, 3);
}

// What each call gets is what it gets alone, though their leaves share passes.
TEST_F(TreeDrafterTest, CallsThatAreDraftedTogetherGetWhatTheyGetAlone) {
  std::mt19937 random(7);
  TreeDrafter together(*model_, 512, passes_, Clock::Real()),
      alone(*model_, 512, passes_, Clock::Real());
  std::vector<std::vector<int32_t>> tokens;
  for (uint32_t call = 0; call < 4; ++call) tokens.push_back(Tokens(10 + 9 * call, call));
  std::vector<int32_t> known(4, 0);
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE(step);
    std::vector<TreeRequest> requests;
    std::vector<size_t> calls;
    int most = 0, sum = 0;
    for (size_t call = 0; call < 4; ++call) {
      if (random() % 4 == 0) continue;
      calls.push_back(call);
      requests.push_back(Ask(std::span(tokens[call]).subspan(static_cast<size_t>(known[call])),
                             known[call], call));
      requests.back().limits.max_nodes = 2 + static_cast<int32_t>(random() % 12);
    }
    if (calls.empty()) continue;
    const auto grown = together.Draft(requests, Never);
    ASSERT_TRUE(grown.ok()) << grown.status();
    for (size_t i = 0; i < calls.size(); ++i) {
      SCOPED_TRACE(calls[i]);
      const auto one = One(alone, requests[i], Never);
      ASSERT_TRUE(one.ok()) << one.status();
      ExpectSame((*grown)[i], *one);
      most = std::max(most, one->passes);
      sum += one->passes;
      known[calls[i]] = static_cast<int32_t>(tokens[calls[i]].size());
      const auto more = Tokens(1 + random() % 4, static_cast<uint32_t>(step));
      tokens[calls[i]].insert(tokens[calls[i]].end(), more.begin(), more.end());
    }
    EXPECT_EQ(grown->front().passes, most) << sum << " alone";
  }
}

// Hears the names of passes.
class NamesOfPasses final : public engine::KernelObserver {
 public:
  NamesOfPasses() : KernelObserver(TickClock()) {}
  void OnKernel(const engine::KernelRun& run) override { Add(run.pass); }
  void OnEmbedded(const engine::PassTag& pass, int64_t, int64_t) override { Add(pass); }
  // Calls by the numbers of their passes; 0: a pass of several.
  std::map<uint32_t, uint64_t> calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }

 private:
  void Add(const engine::PassTag& pass) {
    absl::MutexLock lock(&mutex_);
    const auto [at, made] = calls_.emplace(pass.number, pass.call_id);
    EXPECT_EQ(at->second, pass.call_id) << "two passes have the number " << pass.number;
  }
  mutable absl::Mutex mutex_;
  std::map<uint32_t, uint64_t> calls_;
};

TEST_F(TreeDrafterTest, PassesAreNumberedAndNamedAfterTheirCall) {
  NamesOfPasses names;
  engine::ModelOptions options;
  options.kernel_observer = &names;
  auto model = engine::OpenTiny(folder_, folder_ / "model.gguf", options);
  ASSERT_NE(model, nullptr);
  TreeDrafter drafter(*model, 512, passes_, Clock::Real());
  const std::vector<int32_t> tokens = Tokens(12, 1), others = Tokens(10, 2);
  TreeRequest longer = Ask(tokens, 0, 5), shorter = Ask(others, 0, 6);
  // Branches of one token a pass.
  longer.limits = {.max_nodes = 4, .max_depth = 4, .alpha = 0, .branch_threshold = 1.1};
  shorter.limits = {.max_nodes = 2, .max_depth = 2, .alpha = 0, .branch_threshold = 1.1};
  ASSERT_TRUE(drafter.Draft(std::vector<TreeRequest>{longer, shorter}, Never).ok());
  model.reset();  // threads tell of their last kernels
  // The tokens of each are caught up, both grow two tokens, one two more.
  EXPECT_THAT(names.calls(),
              ElementsAre(Pair(1, 5), Pair(2, 6), Pair(3, 0), Pair(4, 0), Pair(5, 5), Pair(6, 5)));
}

TEST_F(TreeDrafterTest, OneCallThatIsTooLongDoesNotKeepOthersFromTheirDrafts) {
  TreeDrafter drafter(*model_, 64, passes_, Clock::Real());
  const std::vector<int32_t> fits = Tokens(20, 1), longer = Tokens(60, 2);
  const auto grown =
      drafter.Draft(std::vector<TreeRequest>{Ask(longer, 0, 1), Ask(fits, 0, 2)}, Never);
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_TRUE((*grown)[0].tree.empty());
  EXPECT_FALSE((*grown)[1].tree.empty());
}

TEST_F(TreeDrafterTest, TooManyCallsAreNotDraftedTogether) {
  TreeDrafter drafter(*model_, 64, passes_, Clock::Real());
  const std::vector<int32_t> tokens = Tokens(10, 1);
  std::vector<TreeRequest> requests;
  for (uint64_t call = 0; call <= TreeDrafter::kCalls; ++call) {
    requests.push_back(Ask(tokens, 0, call));
  }
  EXPECT_EQ(drafter.Draft(requests, Never).status().code(), absl::StatusCode::kInvalidArgument);
  requests.resize(2);
  requests[1].call_id = requests[0].call_id;
  EXPECT_EQ(drafter.Draft(requests, Never).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TreeDrafterTest, BadRequestsAreRefused) {
  TreeDrafter drafter(*model_, 64, passes_, Clock::Real());
  const auto code = [&](const TreeRequest& request) {
    return One(drafter, request, Never).status().code();
  };
  const std::vector<int32_t> outside = {1, model_->info().vocab_size};
  EXPECT_EQ(code(Ask(outside)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Ask({})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Ask(Tokens(60, 1))), absl::StatusCode::kOk) << "longer than the window: no tree";
}

}  // namespace
}  // namespace withy::serving
