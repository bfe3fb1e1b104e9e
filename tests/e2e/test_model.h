// Small random-weight models for tests of the service: they answer until their limit, always the
// same.
#pragma once

#include <string>

namespace withy::e2e {

// GGUF files written once a run of a test binary, in a directory that is removed at its end. Target
// and draft share a tokenizer. Not thread-safe before the first call of each has returned.
const std::string& TestTargetPath();
const std::string& TestDraftPath();
// 95 M parameters and a window of 8,192: on one core a long prompt takes seconds.
const std::string& SlowModelPath();
// The target's vocabulary, and some milliseconds a token: time for a test to do something in
// mid-answer.
const std::string& TestSlowPath();
// The target's shape with the levels 20, 60 and 100 %, and a TLM for it that chooses at random, but
// always the same: 50 or 100 % of the prompt.
const std::string& TestElasticPath();
const std::string& TestTlmPath();

}  // namespace withy::e2e
