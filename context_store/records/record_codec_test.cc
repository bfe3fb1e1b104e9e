#include "context_store/records/record_codec.h"

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
  EXPECT_EQ(out.unfinished[1].broken_s, 12);
  // Heads of builds whose last fields were the revision, and the unfinished exchanges.
  const size_t numbers = 32, mark = 4;
  const std::string empty_tail(12 + numbers + mark, '\0');
  const std::string plain = Encode(ContextRecord{"title", "req", 5, -6, 7, 8, 9});
  ASSERT_TRUE(plain.ends_with(empty_tail));
  const std::string former = plain.substr(0, plain.size() - empty_tail.size());
  ContextRecord old;
  ASSERT_TRUE(Decode(former, &old).ok());
  EXPECT_EQ(old.revision, 9u);
  EXPECT_TRUE(old.unfinished.empty());
  EXPECT_EQ(old.dropped, 0u);
  EXPECT_EQ(old.total_tokens, 8u) << "no fewer than those in the window";
  for (size_t size = 0; size < whole.size(); ++size) {
    ContextRecord cut;
    EXPECT_EQ(Decode(whole.substr(0, size), &cut).ok(), size == former.size() ||
                                                            size == whole.size() - numbers - mark ||
                                                            size == whole.size() - mark)
        << size;
  }
}

TEST(RecordCodec, WhatTheServiceKeepsIsMarkedInItsRecordAlone) {
  ContextRecord in{"openai", "", 5, 6, 7, 8, 9};
  ContextRecord out;
  ASSERT_TRUE(Decode(Encode(in), &out).ok());
  EXPECT_FALSE(out.kept_by_service);
  in.kept_by_service = true;
  const std::string marked = Encode(in);
  ASSERT_TRUE(Decode(marked, &out).ok());
  EXPECT_TRUE(out.kept_by_service);
  ContextRecord old;  // of a build that had no mark
  ASSERT_TRUE(Decode(marked.substr(0, marked.size() - 4), &old).ok());
  EXPECT_FALSE(old.kept_by_service) << "it may be the app's own";
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

DataKey MakeDataKey(const std::string& owner) {
  return {owner, std::make_shared<const SecretKey>(SecretKey::Random())};
}

TEST(RecordCodec, AnEncryptedValueOpensWithItsKeyUnderItsKeyOnly) {
  const DataKey data_key = MakeDataKey("ctx_1");
  const std::string value = EncryptValue("seg/ctx_1/0", "what was said", data_key);
  EXPECT_EQ(value.find("what was said"), std::string::npos);
  EXPECT_NE(EncryptValue("seg/ctx_1/0", "what was said", data_key), value) << "a salt of its own";
  const auto stored = ParseValue("seg/ctx_1/0", value);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->owner, "ctx_1");
  EXPECT_EQ(*DecryptValue("seg/ctx_1/0", *stored, *data_key.key), "what was said");
  const SecretKey other = SecretKey::Random();
  EXPECT_TRUE(absl::IsDataLoss(DecryptValue("seg/ctx_1/0", *stored, other).status()));
  EXPECT_TRUE(absl::IsDataLoss(DecryptValue("seg/ctx_1/1", *stored, *data_key.key).status()));
  const StoredValue moved{"ctx_2", stored->payload};
  EXPECT_TRUE(absl::IsDataLoss(DecryptValue("seg/ctx_1/0", moved, *data_key.key).status()));
  EXPECT_TRUE(absl::IsDataLoss(OpenValue("seg/ctx_1/0", value).status()));
}

TEST(RecordCodec, AnyFlippedBitOfAnEncryptedValueIsFound) {
  const DataKey data_key = MakeDataKey("ctx_1");
  const std::string value = EncryptValue("k", "payload", data_key);
  for (size_t i = 0; i < value.size() * 8; ++i) {
    std::string damaged = value;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    EXPECT_FALSE(ParseValue("k", damaged).ok()) << "bit " << i;
  }
  // Also when the checksum, which anybody can compute, was made to fit.
  const std::string payload = value.substr(9);
  for (size_t i = 0; i < payload.size() * 8; ++i) {
    std::string forged = payload;
    forged[i / 8] = static_cast<char>(forged[i / 8] ^ (1 << (i % 8)));
    std::string sealed = SealValue("k", forged);
    sealed[0] = static_cast<char>(kEncryptedValue);
    const auto stored = ParseValue("k", sealed);
    if (!stored.ok()) continue;
    EXPECT_FALSE(DecryptValue("k", *stored, *data_key.key).ok()) << "bit " << i;
  }
}

TEST(RecordCodec, AValueOfANewerVersionSaysSo) {
  std::string value = SealValue("k", "payload");
  value[0] = 3;
  const absl::Status newer = ParseValue("k", value).status();
  EXPECT_TRUE(absl::IsUnimplemented(newer)) << newer;
  EXPECT_NE(newer.message().find("newer withy"), absl::string_view::npos);
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
