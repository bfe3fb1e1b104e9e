#include "orchestrator/openai/web_origins.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::orchestrator {
namespace {

using testing::HasSubstr;
using testing::Not;

http::RequestHead From(const std::string& origin) {
  http::RequestHead head;
  head.method = "OPTIONS";
  if (!origin.empty()) head.headers.emplace_back("origin", origin);
  head.headers.emplace_back("access-control-request-method", "POST");
  head.headers.emplace_back("access-control-request-headers", "authorization,x-own");
  return head;
}

TEST(WebOriginsTest, WithoutASettingNothingIsPermitted) {
  const WebOrigins none({});
  EXPECT_EQ(none.ForAnswer(From("http://a")), "");
  EXPECT_EQ(none.ForPreflight(From("http://a")), "");
}

TEST(WebOriginsTest, WhatThePreflightPermitsTheAnswerDoesToo) {
  for (const WebOrigins& origins :
       {WebOrigins({"http://a", "https://b:8080"}), WebOrigins({"http://a", "*"})}) {
    for (const char* origin : {"http://a", "https://b:8080"}) {
      EXPECT_THAT(origins.ForAnswer(From(origin)),
                  AllOf(HasSubstr(std::string("Access-Control-Allow-Origin: ") + origin + "\r\n"),
                        HasSubstr("Vary: Origin\r\n"), HasSubstr("x-withy-call-id")));
      EXPECT_THAT(origins.ForPreflight(From(origin)),
                  AllOf(HasSubstr("Access-Control-Allow-Headers: authorization,x-own\r\n"),
                        HasSubstr("Access-Control-Allow-Methods: ")));
    }
  }
}

TEST(WebOriginsTest, OthersAreNotPermitted) {
  const WebOrigins origins({"http://a"});
  for (const char* origin : {"http://b", "https://a", "http://a:80", "http://a.b", "null", ""}) {
    EXPECT_EQ(origins.ForAnswer(From(origin)), "Vary: Origin\r\n") << origin;
    EXPECT_EQ(origins.ForPreflight(From(origin)), "") << origin;
  }
}

}  // namespace
}  // namespace withy::orchestrator
