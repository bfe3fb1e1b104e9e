#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "base/stack_left.h"
#include "base/test_seed.h"

namespace withy {
namespace {

using testing::HasSubstr;

std::string Nested(int levels, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  text += "1";
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

// A key that counts how often it is compared.
struct CountedKey {
  std::string text;
  explicit CountedKey(std::string_view from) : text(from) {}
  bool operator==(std::string_view other) const {
    ++compared;
    return text == other;
  }
  operator std::string_view() const { return text; }  // NOLINT(google-explicit-constructor)
  static inline size_t compared = 0;
};

TEST(IndexedObjectTest, AKeyIsFoundWithoutComparingAll) {
  const auto compared = [](int keys) {
    IndexedObject<CountedKey, int> object;
    CountedKey::compared = 0;
    for (int i = 0; i < keys; ++i) object.emplace("key " + std::to_string(i), int{i});
    for (int i = 0; i < keys; ++i) {
      EXPECT_EQ(object.find("key " + std::to_string(i))->second, i);
      EXPECT_EQ(object.find("none " + std::to_string(i)), object.end());
    }
    return CountedKey::compared;
  };
  EXPECT_LT(compared(1000), 10'000u);
  EXPECT_LT(compared(200'000), 2'000'000u);
}

TEST(IndexedObjectTest, DoesWhatAMapAndAListDo) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    OrderedJson json = OrderedJson::object();
    std::map<std::string, int> map;
    std::vector<std::string> order;
    for (int step = 0; step < 200; ++step) {
      const std::string key = "k" + std::to_string(random() % 60);
      if (random() % 4 == 0) {
        EXPECT_EQ(json.erase(key), map.erase(key));
        std::erase(order, key);
      } else {
        if (!map.contains(key)) order.push_back(key);
        json[key] = step;
        map[key] = step;
      }
      ASSERT_EQ(json.size(), map.size());
      ASSERT_EQ(json.contains(key), map.contains(key));
    }
    const OrderedJson copy = json;
    size_t at = 0;
    for (const auto& [key, value] : copy.items()) {
      ASSERT_EQ(key, order[at++]);
      ASSERT_EQ(value, map[key]);
      ASSERT_EQ(copy.at(key), map[key]);
    }
    EXPECT_EQ(copy, json);
    EXPECT_EQ(OrderedJson::parse(copy.dump()), json);
  }
}

TEST(ParseJsonTest, RefusesWhatIsNoJsonAndWhatIsTooDeep) {
  OrderedJson json;
  EXPECT_TRUE(ParseJson(R"({"b": [1, {"a": "[[[["}], "a": 2, "b": 3})", &json).ok());
  EXPECT_EQ(json.dump(), R"({"b":3,"a":2})");
  EXPECT_TRUE(ParseJson(Nested(kMaxJsonDepth, "[", "]"), &json).ok());
  EXPECT_THAT(ParseJson(Nested(kMaxJsonDepth + 1, "[", "]"), &json).message(),
              HasSubstr("nested 65 levels deep: at most 64; make it flatter"));
  for (const char* text : {"", "{", "[1,]", "\"\xFF\"", "1e999", "\"", "\"\\", "[1] 2"}) {
    EXPECT_THAT(ParseJson(text, &json).message(), HasSubstr("is not valid JSON")) << text;
  }
  EXPECT_EQ(JsonDepth(R"({"a\"[{": [[]], "b": "\\"})"), 3);
}

TEST(ParseJsonTest, WhatIsParsedCanBeWalkedOnASmallStack) {
  for (const auto& [open, close] :
       {std::pair{"[", "]"}, std::pair{"{\"a\":", "}"}, std::pair{"[{\"a\":[", "]}]"}}) {
    for (const int levels : {1, 10, 20, 30, 60, 200, 100'000}) {
      ASSERT_TRUE(RunOnStack(kSmallStackBytes, [&, open = open, close = close] {
        nlohmann::json sorted;
        OrderedJson ordered;
        const std::string text = Nested(levels, open, close);
        if (ParseJson(text, &sorted).ok()) {
          EXPECT_EQ(nlohmann::json(sorted).dump(), text);
        }
        const absl::Status parsed = ParseJson(text, &ordered);
        if (parsed.ok()) {
          EXPECT_EQ(OrderedJson(ordered).dump(), text);
        }
        EXPECT_TRUE(parsed.ok() || levels > 10) << levels << open << ": " << parsed;
        EXPECT_FALSE(parsed.ok() && levels > kMaxJsonDepth) << levels << open;
      }));
    }
  }
}

TEST(ParseJsonTest, ManyValuesAreParsedInAFewPasses) {
  // With a step for each pair of values, this would take hours.
  const int count = 1'000'000;
  std::string keys = "{", values = "[";
  for (int i = 0; i < count; ++i) {
    keys += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
    values += i > 0 ? ",{}" : "{}";
  }
  OrderedJson ordered;
  nlohmann::json sorted;
  ASSERT_TRUE(ParseJson(keys + "}", &ordered).ok());
  ASSERT_TRUE(ParseJson(keys + "}", &sorted).ok());
  EXPECT_EQ(ordered.size(), static_cast<size_t>(count));
  EXPECT_EQ(ordered["k999999"], 999'999);
  ASSERT_TRUE(ParseJson(values + "]", &ordered).ok());
  EXPECT_EQ(ordered.size(), static_cast<size_t>(count));
}

}  // namespace
}  // namespace withy
