// Small random-weight models for tests of the service. They always give the same answers, up to
// their token limit.
#pragma once

#include <string>

namespace withy::e2e {

// GGUF files written once per run of a test binary, in a directory that is removed at its end.
// Target and draft share a tokenizer. Not thread-safe until the first call of each has returned.
const std::string& TestTargetPath();
const std::string& TestDraftPath();
// 95 M parameters and a window of 8,192 tokens: on one core a long prompt takes seconds.
const std::string& SlowModelPath();
// The target's vocabulary with some milliseconds per token, so that a test can act during an
// answer.
const std::string& TestSlowPath();
// A draft with a vocabulary that is not the target's.
const std::string& TestForeignDraftPath();
// The target's vocabulary, six layers, five of them with a window of 32 tokens, and contexts of
// 4,096 tokens.
const std::string& TestWindowedPath();
// The target's shape with levels of 20, 60 and 100 %, and a TLM for it with fixed random choices:
// 50 or 100 % of the prompt.
const std::string& TestElasticPath();
const std::string& TestTlmPath();
// The same levels and 22 MB of weights, of which a budget of 16 MB keeps the lowest level.
const std::string& LargeElasticPath();

}  // namespace withy::e2e
