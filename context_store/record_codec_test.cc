#include "context_store/record_codec.h"

#include <gtest/gtest.h>

namespace withy::context_store {
namespace {

TEST(RecordCodec, RecordsComeBack) {
  const ContextRecord in{"title", "req", 5, -6, 7, 8, 9, 3};
  ContextRecord out;
  ASSERT_TRUE(Decode(Encode(in), &out).ok());
  EXPECT_EQ(out.title, in.title);
  EXPECT_EQ(out.create_request_id, in.create_request_id);
  EXPECT_EQ(out.created_unix_ns, in.created_unix_ns);
  EXPECT_EQ(out.last_used_unix_ns, in.last_used_unix_ns);
  EXPECT_EQ(out.segments, in.segments);
  EXPECT_EQ(out.tokens, in.tokens);
  EXPECT_EQ(out.revision, in.revision);
  EXPECT_EQ(out.dropped, in.dropped);
}

TEST(RecordCodec, WhatAContextKeepsForRetriesComesBackAndMayBeMissing) {
  ContextRecord in{"title", "req", 5, -6, 7, 8, 9};
  in.system_digest = Sha256("be brief");
  in.unfinished = {{"r1", "d1", {2, 3}, 11}, {"r2", "d2", {5, 2}, 12}};
  const std::string whole = Encode(in);
  ContextRecord out;
  ASSERT_TRUE(Decode(whole, &out).ok());
  EXPECT_EQ(out.system_digest, in.system_digest);
  ASSERT_EQ(out.unfinished.size(), 2u);
  EXPECT_EQ(out.unfinished[1].request_id, "r2");
  EXPECT_EQ(out.unfinished[1].digest, "d2");
  EXPECT_EQ(out.unfinished[1].where, (SegmentRange{5, 2}));
  EXPECT_EQ(out.unfinished[1].broken_unix_s, 12);
  // A head of a build whose last field was the revision.
  const std::string empty_tail(12, '\0');
  const std::string plain = Encode(ContextRecord{"title", "req", 5, -6, 7, 8, 9});
  ASSERT_TRUE(plain.ends_with(empty_tail));
  const std::string former = plain.substr(0, plain.size() - empty_tail.size());
  ContextRecord old;
  ASSERT_TRUE(Decode(former, &old).ok());
  EXPECT_EQ(old.revision, 9u);
  EXPECT_TRUE(old.unfinished.empty());
  EXPECT_EQ(old.dropped, 0u);
  for (size_t size = 0; size < whole.size(); ++size) {
    ContextRecord cut;
    EXPECT_EQ(Decode(whole.substr(0, size), &cut).ok(), size == former.size()) << size;
  }
}

TEST(RecordCodec, ATruncatedRecordIsDataLossAtEveryLength) {
  const std::string whole = Encode(ResultRecord{1, "ctx_1", std::string(32, 'd'), "result"});
  ResultRecord out;
  ASSERT_TRUE(Decode(whole, &out).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Decode(whole.substr(0, size), &out))) << size;
  }
}

TEST(RecordCodec, FieldsOfANewerBuildAreIgnored) {
  AppRecord out;
  ASSERT_TRUE(Decode(Encode(AppRecord{"app", "hash", 3}) + "more", &out).ok());
  EXPECT_EQ(out.name, "app");
}

TEST(RecordCodec, AnyFlippedBitIsFound) {
  const std::string value = SealValue("k", "payload");
  for (size_t i = 0; i < value.size() * 8; ++i) {
    std::string damaged = value;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    const auto opened = OpenValue("k", damaged);
    ASSERT_FALSE(opened.ok()) << "bit " << i;
    EXPECT_NE(opened.status().message().find("\"k\""), absl::string_view::npos);
  }
  EXPECT_EQ(*OpenValue("k", value), "payload");
}

TEST(RecordCodec, AValueUnderAnotherKeyIsRefused) {
  EXPECT_TRUE(absl::IsDataLoss(OpenValue("b", SealValue("a", "payload")).status()));
  // The boundary between key and payload must be unambiguous.
  EXPECT_TRUE(absl::IsDataLoss(OpenValue("ab", SealValue("a", "bc")).status()));
}

TEST(RecordCodec, SegmentsAndTimesSortByNumber) {
  EXPECT_LT(SegmentKey("c", 9), SegmentKey("c", 10));
  EXPECT_LT(SegmentKey("c", 999'999), SegmentKey("c", 4'000'000'000u));
  EXPECT_LT(ResultByTimeKey(999'999'999, "a", "r"), ResultByTimeKey(1'700'000'000, "a", "r"));
}

TEST(RecordCodec, ContextKeysSplitAgain) {
  std::string_view app, context;
  const std::string key = ContextKey("app_1", "ctx_2");
  ASSERT_TRUE(ParseContextKey(key, &app, &context));
  EXPECT_EQ(app, "app_1");
  EXPECT_EQ(context, "ctx_2");
  EXPECT_FALSE(ParseContextKey("ctx/only", &app, &context));
  EXPECT_FALSE(ParseContextKey("seg/a/b", &app, &context));
}

}  // namespace
}  // namespace withy::context_store
