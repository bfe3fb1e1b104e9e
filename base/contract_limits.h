// Limits of the contract (proto/withy/v1/): what apps may send, and how long a process waits for
// them. Everything that checks one, or reads up to one, refers to it here; the comments of the
// contract and docs/ give the same figures (tests/arch/contract_limits_test.cc). Limits of one
// process alone stand beside their check, ranges of the configuration in base/config.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace withy {

// A message to the orchestrator, by gRPC or HTTP: above every limit below. It is kept before its
// token is looked at.
inline constexpr int kMaxRequestBytes = 4 << 20;

// Names: request ids, context ids, call ids, ids of calls of tools.
inline constexpr size_t kMaxIdBytes = 64;
inline constexpr size_t kMaxAppNameBytes = 64;
inline constexpr size_t kMaxTitleBytes = 128;  // of a context

// Prompts. One that is longer is OUT_OF_RANGE: no model has such a window.
inline constexpr size_t kMaxPromptBytes = 1 << 20;
inline constexpr int kMaxMessages = 1024;
inline constexpr size_t kMaxSystemPromptBytes = 256 << 10;  // of CreateContext
inline constexpr size_t kMaxScoreBytes = 3 << 20;           // of a text that is scored

// Texts that get vectors in one call; each as long as a prompt.
inline constexpr int kMaxEmbedInputs = 2048;

// Tools.
inline constexpr size_t kMaxTools = 256;
inline constexpr size_t kMaxToolsBytes = 256 << 10;  // JSON of all
inline constexpr size_t kMaxToolNameBytes = 128;     // of a tool that an app declares
inline constexpr size_t kMaxCalledNameBytes = 256;   // of one that a message says was called
inline constexpr int kMaxCallsOfMessage = 64;
inline constexpr size_t kMaxTemplateArgumentsBytes = 16 << 10;

// Answers.
inline constexpr double kMaxTemperature = 10;
inline constexpr double kMaxRepetitionPenalty = 10;
inline constexpr int32_t kMaxRepetitionWindow = 65536;  // tokens
inline constexpr float kMaxPenalty = 2;                 // of presence and frequency, either sign
inline constexpr float kMaxLogitBias = 100;
inline constexpr size_t kMaxLogitBiases = 1024;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 256;
inline constexpr int32_t kMaxTopLogprobs = 20;  // alternatives of a token

// Forms of answers.
inline constexpr size_t kMaxSchemaBytes = 32 << 10;   // JSON Schema
inline constexpr size_t kMaxGrammarBytes = 32 << 10;  // EBNF
inline constexpr size_t kMaxRegexBytes = 4 << 10;
inline constexpr size_t kMaxRepetitions = 1000;  // {n,m}, minLength, maxItems and the like
inline constexpr int kMaxGroupDepth = 64;        // groups within groups

// Pages of ListContexts.
inline constexpr uint32_t kDefaultPageSize = 100;
inline constexpr uint32_t kMaxPageSize = 1000;
inline constexpr size_t kMaxPageTokenBytes = 256;

// Tokens made within this time after a delta may be sent with the next one: text that grows thirty
// times a second still looks continuous, and a message passes three processes, on the cores that
// compute, in about the time of a small model's token.
inline constexpr int64_t kDeltaIntervalNs = 33 * kNanosPerMilli;
// An answer that is not read for so long is ended: it holds one of the places of running calls. The
// draft model answers one call at a time, so it waits less, and in total.
inline constexpr int64_t kStalledReaderNs = 30 * kNanosPerSecond;
inline constexpr int64_t kStalledDraftReaderNs = 2 * kNanosPerSecond;

}  // namespace withy
