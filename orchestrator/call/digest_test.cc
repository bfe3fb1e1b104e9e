#include "orchestrator/call/digest.h"

#include "gtest/gtest.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {
namespace {

TEST(DigestTest, DependsOnTheRequestButNotOnItsId) {
  v1::GenerateRequest a;
  a.mutable_prompt()->set_text("hello");
  a.set_request_id("one");
  v1::GenerateRequest b = a;
  b.set_request_id("two");
  EXPECT_EQ(RequestDigest(a), RequestDigest(b));
  EXPECT_EQ(RequestDigest(a).size(), 32u);
  b.set_speculation(v1::SPECULATION_OFF);
  EXPECT_EQ(RequestDigest(a), RequestDigest(b)) << "the answer is the same";
  b.mutable_prompt()->set_text("hello!");
  EXPECT_NE(RequestDigest(a), RequestDigest(b));
}

TEST(DigestTest, ToolsAndCallsArePartOfTheRequest) {
  v1::GenerateRequest a;
  v1::Messages& messages = *a.mutable_prompt()->mutable_messages();
  messages.add_messages()->set_role("assistant");
  const std::string before = RequestDigest(a);
  messages.set_tools_json("[]");
  const std::string tools = RequestDigest(a);
  messages.set_template_arguments_json("{}");
  const std::string arguments = RequestDigest(a);
  messages.mutable_messages(0)->add_tool_calls()->set_name("look");
  EXPECT_NE(before, tools);
  EXPECT_NE(tools, arguments);
  EXPECT_NE(arguments, RequestDigest(a));
}

TEST(DigestTest, TheFormOfTheAnswerIsPartOfTheRequest) {
  v1::GenerateRequest a;
  const std::string before = RequestDigest(a);
  a.mutable_output_format()->set_regex("a+");
  const std::string regex = RequestDigest(a);
  a.mutable_output_format()->set_grammar("a+");
  EXPECT_NE(before, regex);
  EXPECT_NE(regex, RequestDigest(a));
}

}  // namespace
}  // namespace withy::orchestrator
