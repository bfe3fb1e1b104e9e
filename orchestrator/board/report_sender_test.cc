#include "orchestrator/board/report_sender.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>

namespace withy::orchestrator {
namespace {

v1::CallReport Refused(const std::string& app, const std::string& reason, int64_t arrived_ns) {
  v1::CallReport report;
  report.set_app(app);
  report.set_reason(reason);
  report.set_status_code(8);
  report.set_arrived_ns(arrived_ns);
  report.set_refusals(1);
  return report;
}

class ReportSenderTest : public ::testing::Test {
 protected:
  using Sent = std::pair<v1::CallReport, std::function<void()>>;
  // The oldest one that is under way arrives.
  void Arrive() {
    const Sent first = std::move(sent_.front());
    sent_.pop_front();
    first.second();
  }

  std::deque<Sent> sent_;  // and not arrived
  const std::shared_ptr<ReportSender> sender_ =
      std::make_shared<ReportSender>([this](v1::CallReport report, std::function<void()> done) {
        sent_.emplace_back(std::move(report), std::move(done));
      });
};

TEST_F(ReportSenderTest, AMillionEqualRefusalsAreTwoMessages) {
  constexpr int64_t kCalls = 1'000'000;
  for (int64_t i = 1; i <= kCalls; ++i) sender_->Add(Refused("mail", "QUEUE_FULL", i));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].first.refusals(), 1u);
  Arrive();
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].first.refusals(), static_cast<uint64_t>(kCalls - 1));
  EXPECT_EQ(sent_[0].first.refused_since_ns(), 2);
  EXPECT_EQ(sent_[0].first.arrived_ns(), kCalls);
  Arrive();
  EXPECT_TRUE(sent_.empty());
  sender_->Add(Refused("mail", "QUEUE_FULL", kCalls + 1));
  ASSERT_EQ(sent_.size(), 1u) << "at once";
}

TEST_F(ReportSenderTest, WhatDiffersIsSentByItself) {
  sender_->Add(Refused("mail", "QUEUE_FULL", 1));
  sender_->Add(Refused("maps", "QUEUE_FULL", 2));
  sender_->Add(Refused("mail", "BUDGET_REACHED", 3));
  v1::CallReport answered;
  answered.set_app("mail");
  sender_->Add(answered);
  sender_->Add(answered);
  EXPECT_EQ(sent_.size(), 5u);
}

TEST_F(ReportSenderTest, SoManyAreUnderWayAndOthersAreLost) {
  for (int i = 0; i < ReportSender::kMostUnderWay; ++i) sender_->Add({});
  sender_->Add(Refused("mail", "QUEUE_FULL", 1));
  EXPECT_EQ(sent_.size(), size_t{ReportSender::kMostUnderWay});
  Arrive();
  sender_->Add(Refused("mail", "QUEUE_FULL", 2));
  sender_->Add({});
  EXPECT_EQ(sent_.size(), size_t{ReportSender::kMostUnderWay});
  while (!sent_.empty()) Arrive();
  sender_->Add({});
  EXPECT_EQ(sent_.size(), 1u) << "nothing is counted twice";
}

}  // namespace
}  // namespace withy::orchestrator
