#include "orchestrator/audit_record.h"

#include <string>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;

const AuditKey kKey = {.model_id = "abc", .levels = {20, 60, 100}};

policy::PairTable Fresh() { return {kKey.levels, {}}; }

policy::PairTable Learnt() {
  policy::PairTable table = Fresh();
  for (int i = 0; i < 10; ++i) table.Learn("app_1", {100, 20}, 0.25);
  table.Learn("app_2", {100, 60}, 1);
  table.Learn("app_2", {50, 100}, 0.5);
  return table;
}

TEST(AuditRecordTest, BringsBackWhatWasFound) {
  const policy::PairTable table = Learnt();
  const std::string record = AuditRecord(kKey, table);
  EXPECT_THAT(record, HasSubstr("abc 20,60,100 tokens\n"));
  EXPECT_THAT(record, HasSubstr("\nboard 100 20 10.000 2.500\n"));
  EXPECT_THAT(record, HasSubstr("\napp app_2 50 100 1.000 0.500\n"));
  policy::PairTable again = Fresh();
  ASSERT_TRUE(ReadAuditRecord(record, kKey, &again).ok());
  for (const std::string app : {"app_1", "app_2", "new"}) {
    for (const policy::LevelPair pair : table.Pairs()) {
      EXPECT_DOUBLE_EQ(again.ChanceOf(app, pair).mean, table.ChanceOf(app, pair).mean);
      EXPECT_DOUBLE_EQ(again.ChanceOf(app, pair).spread, table.ChanceOf(app, pair).spread);
    }
  }
  EXPECT_EQ(AuditRecord(kKey, again), record);
}

TEST(AuditRecordTest, ARecordOfSomethingElseIsForeign) {
  const std::string record = AuditRecord(kKey, Learnt());
  AuditKey model = kKey, levels = kKey, measure = kKey;
  model.model_id = "abd";
  levels.levels = {20, 100};
  measure.measure = AuditMeasure::kAnswers;
  for (const AuditKey& key : {model, levels, measure}) {
    policy::PairTable table(key.levels, {});
    const absl::Status status = ReadAuditRecord(record, key, &table);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("abc 20,60,100 tokens"));
    EXPECT_TRUE(table.board().empty());
  }
}

// Whatever is missing or changed: nothing of a damaged record is believed.
TEST(AuditRecordTest, ADamagedRecordChangesNothing) {
  const std::string record = AuditRecord(kKey, Learnt());
  const auto rejected = [](const std::string& bytes) {
    policy::PairTable table = Fresh();
    const absl::Status status = ReadAuditRecord(bytes, kKey, &table);
    EXPECT_TRUE(table.board().empty()) << bytes;
    EXPECT_TRUE(table.apps().empty()) << bytes;
    return !status.ok();
  };
  for (size_t length = 0; length + 1 < record.size(); ++length) {
    EXPECT_TRUE(rejected(record.substr(0, length))) << length;
  }
  for (const auto& [from, to] : {std::pair{"audits 1", "audits 2"},
                                 {"10.000", "nan"},
                                 {"10.000", "-10"},
                                 {"10.000", "1.000"},
                                 {"board 100 20", "board 100 30"},
                                 {"board 100 20", "bored 100 20"},
                                 {"app app_1", "app"},
                                 {"2.500", "2,500"}}) {
    EXPECT_TRUE(rejected(absl::StrReplaceAll(record, {{from, to}}))) << from << " as " << to;
  }
}

}  // namespace
}  // namespace withy::orchestrator
