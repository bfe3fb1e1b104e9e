#include "engine/output/output_constraint.h"

#include <gtest/gtest.h>

#include "engine/sampling/testing.h"
#include "engine/session/testing.h"

namespace withy::engine {
namespace {

class OutputConstraintTest : public ::testing::Test {
 protected:
  TextsGrammar Texts(std::vector<std::string> texts) const {
    return TextsGrammar(std::move(texts), chat_.end, chat_.tokenizer->vocab_size());
  }
  // The bytes that may come next; '$': the end.
  std::string Next(OutputConstraint& constraint) const {
    const auto mask = constraint.Mask();
    EXPECT_TRUE(mask.ok()) << mask.status();
    std::string next;
    for (int32_t id = 0; id < chat_.tokenizer->vocab_size(); ++id) {
      if (MaskHas(*mask, id)) next += id == chat_.end ? '$' : static_cast<char>(id);
    }
    return next;
  }
  static void Say(OutputConstraint& constraint, std::string_view text) {
    for (const char c : text) constraint.Accept(static_cast<uint8_t>(c));
  }

  const ChatFixture chat_;
};

TEST_F(OutputConstraintTest, WithoutAGrammarEverythingIsAllowed) {
  OutputConstraint constraint(nullptr, *chat_.tokenizer);
  EXPECT_FALSE(constraint.active());
  EXPECT_TRUE(constraint.Mask()->empty());
  constraint.BeginInThought();
  constraint.Accept('x');
  EXPECT_FALSE(constraint.Over());
  EXPECT_TRUE(constraint.Try(chat_.end));
  constraint.TakeBack(1);
  EXPECT_TRUE(constraint.Forced(8).empty());
}

TEST_F(OutputConstraintTest, FollowsTheAnswerUntilItIsOver) {
  const TextsGrammar texts = Texts({"yes", "no", "nor"});
  OutputConstraint constraint(&texts, *chat_.tokenizer);
  EXPECT_EQ(Next(constraint), "ny");
  Say(constraint, "no");
  EXPECT_EQ(Next(constraint), "r$");
  EXPECT_FALSE(constraint.Over()) << "a letter may come";
  Say(constraint, "r");
  EXPECT_TRUE(constraint.Over());
}

TEST_F(OutputConstraintTest, LookingAheadLeavesTheMaskAsItWas) {
  const TextsGrammar texts = Texts({"yes", "no"});
  OutputConstraint constraint(&texts, *chat_.tokenizer);
  EXPECT_EQ(Next(constraint), "ny");
  EXPECT_TRUE(constraint.Try('y'));
  EXPECT_FALSE(constraint.Try('o'));
  EXPECT_TRUE(constraint.Try('e'));
  constraint.TakeBack(2);
  EXPECT_TRUE(constraint.Try('n'));
  constraint.TakeBack(1);
  EXPECT_EQ(Next(constraint), "ny");
  Say(constraint, "y");
  EXPECT_EQ(constraint.Forced(8), std::vector<int32_t>({'e'})) << "the last one may yet change";
  EXPECT_TRUE(constraint.Forced(0).empty());
}

TEST_F(OutputConstraintTest, AThoughtIsFreeAndDoesNotEndTheAnswer) {
  const TextsGrammar texts = Texts({"yes"});
  OutputConstraint constraint(&texts, *chat_.tokenizer);
  constraint.BeginInThought();
  const std::string free = Next(constraint);
  EXPECT_EQ(free.size(), static_cast<size_t>(chat_.tokenizer->vocab_size()) - 1);
  EXPECT_FALSE(MaskHas(*constraint.Mask(), chat_.end));
  Say(constraint, "no </think no </think");
  EXPECT_FALSE(constraint.Over());
  EXPECT_TRUE(constraint.Forced(8).empty());
  Say(constraint, ">");
  EXPECT_EQ(Next(constraint), "y");
}

TEST_F(OutputConstraintTest, AVocabularyWithoutWhatMustComeIsAnError) {
  const TextsGrammar texts = Texts({});
  OutputConstraint constraint(&texts, *chat_.tokenizer);
  EXPECT_EQ(constraint.Mask().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace withy::engine
