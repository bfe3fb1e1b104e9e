#include "orchestrator/digest.h"

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

}  // namespace
}  // namespace withy::orchestrator
