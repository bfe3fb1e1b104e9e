// The tuned constants of the decisions, in one table. For each: what it is, its unit, where the
// value comes from, and the test or run that fails or gets worse when it is changed.
//
// Not in it, each beside the code that it is of: limits of the contract (base/contract_limits.h)
// and ranges of the configuration (base/config.cc); sizes of queues, caches and buffers, intervals
// of polls, time-outs of RPCs and how measurements are made, which change no decision; what engine/
// tunes, kernels above all, which knows no policies. Of KV and of speculation, what one algorithm
// alone uses stands beside it still: policy/kv/, policy/draft/, context_store/,
// serving/speculation/.
//
// Origin is one of: `choice` (decided, for the reason given), `measured` (read off a run, a section
// of docs/benchmarks.md), `unrecorded` (the tests hold what it does, but no run is kept that
// compares it with other values: the first to be looked at when a figure disappoints). Tests are in
// policy_test unless a path says otherwise. Constants of one algorithm's arithmetic (a grid's
// width, a guard against division by zero) stay beside that algorithm, too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace withy::policy {

// The level of the whole model, and the share of a whole prompt. Not tuned.
inline constexpr uint32_t kFullPercent = 100;

// --- Waiting and turns (turn.h, admission.h, call_plan.h)

// Time after which a waiting call goes before all calls that have waited less, and is no longer
// held back for running calls' sake. Nanoseconds. Choice: the longest wait without feedback that
// keeps a person's attention (Nielsen 1993). Tests: TurnTest, AdmissionTest.NobodyIsHeldForEver.
inline constexpr int64_t kPatienceNs = 10 * kNanosPerSecond;
// Tokens that a running answer is looked ahead: it may end after any of them and has to be in time
// then. Tokens. Unrecorded. Tests: SlackTest, PacerTest.
inline constexpr uint32_t kHorizonTokens = 4;
// Longest piece of a prefill between two decode steps where the configuration names none.
// Milliseconds. Choice: the default of model.prefill_piece_ms. Test: LatencyModelTest.
inline constexpr double kPieceMs = 50;
// Longest time between two looks whether a waiting call may start: slack changes where nothing
// happens. Nanoseconds. Choice: short beside a piece. Test: CallTableTest.
inline constexpr int64_t kHoldPollNs = 20 * kNanosPerMilli;
// Time constant with which past arrivals fade from the arrival rate. Milliseconds. Choice. Test:
// AdmissionTest.TellsHowFastCallsCome.
inline constexpr double kArrivalMemoryMs = 10'000;
// Arrivals within the memory that say nothing of those to come. Calls. Choice: one call beside
// another may be chance. Test: AdmissionTest.TellsHowFastCallsCome.
inline constexpr double kArrivalsByChance = 1;

// --- Choice of prompt and model level (decide.h)

// Share by which a latency may exceed a target given as a ratio and still meet it: the denominator
// is a prediction, and equal calls differ by some per cent. Share. Choice.
// Test: DecideTest.NoiseOfAPerCentNeitherShrinksNorRefusesTheFullModel.
inline constexpr double kRatioTolerance = 0.05;
// Promise (chance to be right and in time) below which a pair counts as hopeless. Probability.
// Choice. Test: DecideTest.NothingMeets.
inline constexpr double kLeastPromise = 0.01;
// What each call that is expected while this one has the board loses by it. Right answers. Choice:
// it takes the place of one answer. Test: DecideTest.WhatTakesTheBoardFromOthersIsWorthLess.
inline constexpr double kLossOfNewcomer = 1;
// What a late answer costs beside not counting as a right one. Right answers. Choice: a broken
// promise costs what the answer was worth. Test: DecideTest.WhatMayComeLateIsWorthLess.
inline constexpr double kLossOfLate = 1;
// Where it is not known how often levels are right: how late the full model may be in the mean, and
// the most that one call counts; the chance of being in time that a lower level must have, of that
// of the surest. Shares of the limit; share. Choice: the full model keeps a ratio of 1 on a quiet
// board, where it misses by a little and a stall is rare, and loses it where calls are late by
// half. Tests: DecideTest.ABoardThatBecomesBusy*.
inline constexpr double kAcceptedLateness = 0.05;
inline constexpr double kMostLateness = 0.5;
inline constexpr double kSureEnough = 0.95;
// Expected newcomers from which the explanation names them. Calls. Choice. Test:
// DecideTest.WhatTakesTheBoardFromOthersIsWorthLess.
inline constexpr double kNewcomersWorthTelling = 0.1;

// --- Learning from finished calls (speed_fit.h, latency_learning.h, ramp.h)

// How far one observation moves the prediction of equal work towards what was measured. Share.
// Unrecorded. Tests: DepthBoardTest, LatencyLearningTest.LearnsTheBoard.
inline constexpr double kFitWeight = 0.2;
// The same of a probe, which is made for its own sake on an idle board. Share. Unrecorded. Test:
// DepthBoardTest.RefusedCallsAreAcceptedAgainOnceTheBoardIsFast.
inline constexpr double kProbeWeight = 0.5;
// The same of the full model's speed on the idle board, once many calls are known. Share. Choice: a
// mean over 25 calls, so that ratios do not follow one call's luck. Test:
// LatencyLearningTest.TheIdleBoardIsAMeanOverManyCalls.
inline constexpr double kIdleWeight = 0.04;
// How far off one observation counts at most. Share of the prediction; of a pass, its logarithm.
// Choice: one stall must not move the estimate. Tests:
// LatencyLearningTest.OneStallDoesNotPoisonTheModel, BoardSpeedTest.
inline constexpr double kMaxSurprise = 0.3;
// Observations in a row, further off than that to the same side, after which they are believed, and
// how far each then moves the prediction. Count; share. Unrecorded. Test:
// LatencyLearningTest.WhatABurstTaughtIsForgottenBehindIt.
inline constexpr int kSurprisesBelieved = 4;
inline constexpr double kBelievedWeight = 0.5;
// Largest measured time over calibrated time, and inverse smallest. Ratio. Choice. Test:
// SpeedFitTest.
inline constexpr double kMaxRatio = 8;
// Largest ratio of the depth's correction to the weights' one, and inverse smallest. Ratio.
// Choice: measurements at start are off by less. Test:
// DepthBoardTest.StrictCallsAreDecidedRightlyAtAllDepthsAfterAnyMix.
inline constexpr double kMaxDepthSkew = 1.6;
// Variance of one observation, in the unit of SpeedFit's prior. Unrecorded. Test: SpeedFitTest.
inline constexpr double kSpeedFitNoise = 0.25;
// What each observation makes forgotten of how sure the fit is, and, of one with kFitWeight, of the
// fitted values where they are not sure. Share. Unrecorded.
inline constexpr double kForgetCovariance = 0.02;
inline constexpr double kForgetValue = 0.01;
// Calibrated times for which the constant is half at fault where a prediction is wrong.
// Milliseconds. Choice: a few times the constants seen. Test:
// LatencyLearningTest.TellsWhatGrowsWithACallFromWhatDoesNot.
inline constexpr double kShortPrefillMs = 10;
inline constexpr double kShortStepMs = 2;
// Error of the overhead that is never a surprise. Milliseconds. Choice. Test:
// LatencyLearningTest.OneStallDoesNotPoisonTheModel.
inline constexpr double kLeastOverheadSurpriseMs = 1;
// Share of an answer's time that must be its own, other calls' prefill aside, to learn from it.
// Share. Choice. Test: LatencyLearningTest.LearnsTheBoard.
inline constexpr double kLeastOwnDecodeShare = 0.25;
// Weight of one observation for the bias of a level, and the largest bias. Share; ratio.
// Unrecorded. Test: LatencyLearningTest.ALevelThatWasCalibratedWronglyIsFoundOut.
inline constexpr double kBiasWeight = 0.1;
inline constexpr double kMaxBias = 2;
// Weight of one call for how reliable predictions are: half forgotten after 23. Share. Unrecorded.
// Test: LatencyLearningTest.WhatHoldsUpAFewDoesNotMakeTheOthersLate.
inline constexpr double kDeviationWeight = 0.03;
// The same in the short memory; what of the evidence for it is kept from call to call, the most
// that one call adds, and what it must exceed. Share; share; log-likelihoods. Measured: simulated,
// 0.1 to 0.3 and 0.7 to 0.9: the least error behind a change for 1 % on a quiet board. Tests:
// ReliabilityTest.
inline constexpr double kRecentDeviationWeight = 0.2;
inline constexpr double kRecentKept = 0.8;
inline constexpr double kMostRecentEvidence = 2;
inline constexpr double kRecentPrior = 0.5;
// Calls whose largest told slowdown plans the next one, the present one among them. Calls. Choice:
// beside a neighbour two quick calls in a row are not rare, three are. Tests:
// DecideTest.ABoardThatBecomesBusy*.
inline constexpr size_t kSlowCallsKept = 4;
// Calls of its own that what holds for all apps counts as for one app. Calls. Unrecorded. Test:
// LatencyLearningTest.AnAppsFirstCallsCountForMoreAndTheOldestAppIsForgotten.
inline constexpr double kAppPriorCalls = 20;
// Apps whose histories are kept. Apps. Choice: a bound. Same test.
inline constexpr size_t kMaxApps = 32;
// Weight of one answer for how long an app's answers are. Share. Unrecorded. Test:
// LatencyLearningTest.LearnsWhatAnAnswersFirstStepsTakeLonger.
inline constexpr double kAnswerWeight = 0.1;
// Tokens of an answer before any was seen, and of a call of a benchmark that sets none. Tokens.
// Choice. Test: LatencyModelTest.TellsHowManyCallsAreToBeExpectedMeanwhile.
inline constexpr uint32_t kUsualAnswerTokens = 64;
// How far the TLM's assumed speed goes back to its speed at start each time it is not asked for
// its slowness. Share. Choice. Test:
// LatencyLearningTest.ATlmThatIsNotAskedForItsSlownessIsNotThoughtSlowForEver.
inline constexpr double kTlmRecovery = 0.1;
// Weight of one answer for the ramp, weight of the belief that there is none, its upper bound, and
// answers after which outliers are clipped. Share; share; steps; answers. Unrecorded. Tests:
// RampTest.
inline constexpr double kRampWeight = 0.04;
inline constexpr double kRampPrior = 0.01;
inline constexpr double kMaxRampSteps = 8;
inline constexpr double kRampKnownAnswers = 10;
// Prediction error before anything was seen: standard deviation of log(measured / predicted).
// Choice. Test: ReliabilityTest.
inline constexpr double kDeviationAtStart = 0.05;

// --- What levels are worth to an app (agreement.h, pair_table.h)

// Compared answers that the prior counts as, and after how many old ones fade. Answers. Unrecorded.
// Test: AgreementTest.
inline constexpr double kAgreementPrior = 4;
inline constexpr double kAgreementMemory = 64;
// Of the pairs of levels that are counted for all apps together (pair_table.h): after how many
// answers old ones fade, and how many answers of an app count as much as those of all. Answers.
// Choice: the board's chances hold for longer than an app's prompts stay alike. Test:
// PairTableTest.
inline constexpr double kBoardAgreementMemory = 512;
inline constexpr double kAppPrior = 8;
// An app's first answers are all compared, later ones one in so many: its prompts hardly change,
// and comparing takes energy. Answers. Choice. Test: orchestrator_test, elastic_test.
inline constexpr uint32_t kFirstAudits = 32;
inline constexpr uint32_t kAuditEvery = 32;
// Longest answer that is compared, and how much longer one of a lower level may come to be before
// it counts as another. Tokens. Choice: long answers say the same in other words. Test:
// orchestrator_test, elastic_test.
inline constexpr uint32_t kLongestAuditTokens = 48;
inline constexpr uint32_t kMoreAuditTokens = 16;

// --- Refusals, and what is done when no call is there (latency_model.h, orchestrator/)

// Advice to a refused caller, where nothing was measured, at least and at most. Milliseconds.
// Choice: the shortest costs the board little, and after the longest a person has gone. Test:
// LatencyModelTest.ARefusedCallerIsToldWhenASlotComesFree.
inline constexpr double kRetryUnknownMs = 1000;
inline constexpr double kLeastRetryMs = 50;
inline constexpr double kMostRetryMs = 30'000;
// The same beside a text that is being scored, which takes seconds to minutes. Milliseconds.
// Choice.
inline constexpr int64_t kScoreRetryMs = 2000;
// Vectors of texts beside running calls: how long one piece takes, and how long the calls have the
// cores between two of them, so that they lose about a fifth of the time. Milliseconds. Choice.
inline constexpr int64_t kEmbedPieceMs = 25;
inline constexpr int64_t kEmbedPauseMs = 100;
// Advice to who comes while too many texts wait for their vectors. Milliseconds. Choice.
inline constexpr int64_t kEmbedRetryMs = 500;
// A worker's advice where it knows no better, and the least. Milliseconds. Choice.
inline constexpr int64_t kWorkerRetryMs = 200;
inline constexpr int64_t kLeastWorkerRetryMs = 20;
// Time without a call before audits and probes begin. Nanoseconds. Choice: an app that asks again
// with an answer in hand does so sooner. Test: orchestrator_test.
inline constexpr int64_t kQuietNs = 20 * kNanosPerMilli;
// Conversations over the HTTP API that are shorter get no context: their KV is computed sooner than
// a context is made. Bytes. Unrecorded. Test: orchestrator_test.
inline constexpr size_t kLeastConversationBytes = 1024;

// --- Measurements after refusals (probe_policy.h)

// Longest prefill of one probe, and tokens that it generates. Milliseconds; tokens. Choice: short
// beside what it finds out. Tests: ProbeTokensTest, DepthBoardTest.
inline constexpr double kMostProbeMs = 500;
inline constexpr uint32_t kProbeAnswerTokens = 12;
// Probes for one refusal, the error up to which a prediction is right, and the shortest and longest
// pause between probes that find it right. Count; share; nanoseconds. Choice: a board that is fast
// again is noticed within 10 s. Tests: ProbePolicyTest, DepthBoardTest.
inline constexpr int kProbesAtOnce = 8;
inline constexpr double kProbeOff = 0.1;
inline constexpr int64_t kLeastProbePauseNs = kNanosPerSecond / 4;
inline constexpr int64_t kMostProbePauseNs = 8 * kNanosPerSecond;

// --- Steps of the worker (pace.h, prompt_level.h, prompts_beside_answers.h, step_plan.h)

// Tokens within which a late answer must catch up to count as recoverable. Tokens. Choice: more
// than kHorizonTokens, since an answer that falls to a lower level loses quality for certain, and
// one that prompts wait for only may end too early. Test: PromptRowsBesideAnswersTest.
inline constexpr int32_t kRecoveryTokens = 8;
// Times between tokens that must be known at a level before they count instead of calibrated ones.
// Tokens. Choice: a median needs three. Test: PacerTest.
inline constexpr int32_t kMinTokenTimes = 3;
// Share of the time left that a prompt may take at a lower level it falls to. Share. Unrecorded.
// Test: PacerTest.APromptThatIsBehindGoesOnAtTheHighestLevelThatIsInTime.
inline constexpr double kFallShare = 0.97;
// An answer's reserve: the smaller of these shares of what its limit gave it so far and of what it
// has gained on it, and the time of some tokens on top. Share; share; tokens. Unrecorded.
// Test: PromptRowsBesideAnswersTest.
inline constexpr double kReserveOfGiven = 0.15;
inline constexpr double kReserveOfGained = 0.5;
inline constexpr double kReserveTokens = 2;
// What a first token that competes with computing takes to reach the app. Milliseconds. Choice: it
// takes one or two. Test: PacerTest.AFirstTokenIsUrgentWhereNothingWaitsBehindItOrItIsDue.
inline constexpr double kFirstTokenOnItsWayMs = 3;
// How long the cores are left idle for a first token, urgent or not. Microseconds. Unrecorded.
// Test: PacerTest.
inline constexpr int64_t kUrgentFirstTokenLeadUs = 300;
inline constexpr int64_t kFirstTokenLeadUs = 100;
// A prompt's step is slow, not just unlucky, when it took more than kSlowPrompt of what was
// expected; its tokens are then expected to be slower by kSlowTokensShare of that. Ratio; share.
// Measured: run "Slow passes". Test: PacerTest.AnAnswerAfterASlowPromptBeginsLower.
inline constexpr double kSlowPrompt = 1.2;
inline constexpr double kSlowTokensShare = 0.6;
// A step of a prompt is watched that would be late on a board so much slower than lately. Ratio.
// Measured: run "Slow passes". Test: SlowStepWatchTest.
inline constexpr double kWatchedSlowdown = 2;
// Weight of one cold pass for what such passes take more than warm ones, and its bound. Share;
// ratio. Unrecorded. Test: StepLearnerTest.
inline constexpr double kColdWeight = 0.2;
inline constexpr double kMostColdRatio = 4;
// Rows from which a pass takes what computing them takes; one of fewer takes what reading the
// weights does, and says nothing of rows. Rows. Choice: what kernels compute at once, twice. Tests:
// BoardSpeedTest, StepLearnerTest.
inline constexpr int32_t kManyRows = 16;
// Shares of its work after which a step that is watched is looked at. Shares. Measured: run "Slow
// passes". Test: StepPaceEstimateTest.
inline constexpr std::array<double, 4> kStepLooks = {0.04, 0.08, 0.12, 0.16};
// Passes that find cold caches and teach nothing of the board's speed: so many behind a pause so
// long. Passes; nanoseconds. Choice. Test:
// StepLearnerTest.WhatFindsColdCachesTellsNothingOfTheBoard.
inline constexpr int32_t kColdPasses = 2;
inline constexpr int64_t kColdPauseNs = 5 * kNanosPerMilli;
// The fit of what a pass takes (board_speed.h): variances of its factors before anything is known
// and of one observed ratio, and the share of what is known that a pass makes forgotten, values and
// variances alike. If values stayed while their variances grew, passes of one kind would move
// factors that only another kind can correct. Unrecorded. Test: BoardSpeedTest.
inline constexpr double kPassFitUnsure = 0.25;
inline constexpr double kPassFitNoise = 0.01;
inline constexpr double kPassFitForget = 0.002;
// A constant of this many milliseconds is as likely as a factor that is off by 1. Milliseconds.
// Unrecorded. Test: BoardSpeedTest.
inline constexpr double kPassFitConstantMs = 0.1;
// What a row adds to a pass of few rows before that is learnt: it hides behind the weights that are
// read. Share of what it takes in a prompt. Unrecorded. Test: BoardSpeedTest.
inline constexpr double kHiddenRowShare = 0.3;
// Depth that doubles what a row takes, where that was not measured. Tokens. Choice. Test:
// BoardSpeedTest.
inline constexpr double kGuessedDepthTokens = 4096;
// How far one pass moves the pace that the next one is predicted by, as a logarithm. Measured:
// replays of recorded passes (docs/lab/predictions.md). Test: BoardSpeedTest.
inline constexpr double kPassPaceWeight = 0.3;
// Error (a logarithm) from which a pass was stalled, or the board has changed, to either side: it
// tells nothing of the pace until several passes agree. Choice. Test: BoardSpeedTest.
inline constexpr double kStalledPassError = 0.5;
// Error that one pass teaches a fit at most. Share. Choice: less than the pace's (kMaxSurprise), so
// that what all passes have in common becomes the pace's. Test: BoardSpeedTest.
inline constexpr double kMaxFitSurprise = 0.15;
// Passes that a change is judged by, and blocks that stalls are. Count. Choice: a median of five.
// Test: BoardSpeedTest.
inline constexpr size_t kRecentPasses = 5;
inline constexpr size_t kStallBlocks = 5;
// The board's speed (board_speed.h). How far one pass moves it, and the error of a prediction that
// is usual, as logarithms. A change is believed once the errors beyond what is usual add up to
// kBoardChangeSum, of which one pass gives at most kMaxSurprise. Choice: four passes of a board
// that lost a quarter of its speed. Tests: BoardSpeedTest.
inline constexpr double kBoardSpeedWeight = 0.05;
inline constexpr double kUsualPassError = 0.06;
inline constexpr double kBoardChangeSum = 0.8;
// Stalls of passes are judged in blocks of so much predicted time. Milliseconds. Choice: several
// time slices of a usual scheduler (3 to 4 ms). Test: BoardSpeedTest.TimeSlicesOfANeighbour*.
inline constexpr double kStallBlockMs = 10;
// Ratio of the time of passes to their time without stalls from which stalls count. Choice: above
// what rare stalls of a free board make of it. Test: likewise.
inline constexpr double kStallsThatCount = 1.15;
// Share of a step under way from which its own speed tells how long it still takes. Share.
// Unrecorded. Test: step_plan_test.
inline constexpr double kDoneThatTells = 0.1;
// Rows of prompts in a step without answers on a CPU, whose kernels' efficiency does not grow
// beyond. Other devices say their own (engine Model::piece_rows). Rows. Measured: smaller pieces
// cost up to 1.5 times as much a row (ARCHITECTURE.md, A call).
inline constexpr int32_t kRowsWithoutAnswers = 128;
// Fewer rows of prompts are not worth a place beside answers. Rows. Unrecorded. Test:
// PromptRowsBesideAnswersTest.
inline constexpr int32_t kFewestRowsBeside = 16;
// A smaller piece takes nearly as long. Rows. Choice: what kernels compute at once. Test:
// PieceSizerTest.
inline constexpr int32_t kFewestPieceRows = 8;
// Decode steps that a piece may take where passes stream weights: such a pass takes nearly the same
// time for one row as for many. Steps. Choice. Test: serving_test.
inline constexpr double kStreamedStepsInPiece = 2;
// Rows whose KV is claimed before they are computed: pieces of a prompt, rows of an answer. Count;
// rows. Choice: half a chunk. Test: serving_test.
inline constexpr int32_t kPiecesClaimedAhead = 2;
inline constexpr int32_t kAnswerRowsClaimedAhead = 8;
// KV of which nothing arrives for so long is computed instead. Nanoseconds. Choice: beyond any
// disk's pause for its own housekeeping. Test: serving_test.
inline constexpr int64_t kStuckLoadNs = 2 * kNanosPerSecond;
// Pause after which a call that waits for KV, and was refused chunks to compute meanwhile, asks
// again. Nanoseconds. Choice: a few chunks' computing time. Test: KvLoadTest.
inline constexpr int64_t kAskForYieldNs = 10 * kNanosPerMilli;
// A piece that used less than kPieceFullShare of its time grows towards kPieceAimShare of it, at
// most by kPieceMaxGrowth; one that took too long shrinks at most by kPieceMaxShrink. The first
// guess is kPieceFirstShare of what a long prefill suggests, since short pieces cost more a row.
// Shares; ratios. Unrecorded. Test: PieceSizerTest.
inline constexpr double kPieceFullShare = 0.85;
inline constexpr double kPieceAimShare = 0.95;
inline constexpr double kPieceFirstShare = 0.7;
inline constexpr double kPieceMaxGrowth = 1.25;
inline constexpr double kPieceMaxShrink = 4;

// --- Speculation (draft_confidence.h, tree_budget.h, speculation.h)

// What speculation may lose of the time of plain decoding, whatever its drafts are worth. Share.
// Choice: a third is kept for what its clock reads and bookkeeping take, of the 3 % that are
// allowed. Tests: LossLimitTest, SpeculationTest.IsNeverMuchSlower.
inline constexpr double kMostLoss = 0.02;
// Credit that a new context, and a new app, begin with, and the most that is kept of what was
// gained. Plain passes. Choice: two wider passes before the first gain. An app begins with no more
// than a context: its first 160 tokens then lose 2.4 % at most, however useless its drafts are, and
// one gain gives it the credit of dozens of tries. Tests: LossLimitTest, SpeculationTest.
inline constexpr double kFirstContextCredit = 0.6;
inline constexpr double kFirstAppCredit = 0.6;
inline constexpr double kMostCreditTokens = 4;
// Gain from which a pass with drafts is tried. Ratio. Choice: less is within the noise of times.
// Test: ChooseBudgetTest.
inline constexpr double kLeastGain = 1.03;
// What a row more costs where nothing was measured. Share of a pass. Choice: dear, since what is
// measured corrects it. Test: RowCostsTest.
inline constexpr double kGuessedRowShare = 0.25;
// Weight of the first pass of a number of rows for what rows cost where nothing was measured.
// Share. Choice: two or three passes tell. Test: RowCostsTest.AnUncalibratedBoardIsKnownSoon.
inline constexpr double kGuessWeight = 0.5;
// Weight of one pass for what its number of rows costs, and of a plain pass for what was calibrated
// instead. Shares. Choice. Test: RowCostsTest.
inline constexpr double kRowCostWeight = 0.15;
inline constexpr double kRowCostForgetting = 0.01;
// Passes with drafts after which one without tells again what is plain. Passes. Choice: costs a
// hundredth of the gain. Test: SpeculatorTest.
inline constexpr int32_t kPassesBetweenPlain = 48;
// Verified tokens that the prior of a bin counts as, and how much of what was seen before counts
// after one more. Tokens; share. Choice: half of it is forgotten after 35 tokens. Test:
// DraftConfidenceTest.
inline constexpr double kDraftPriorTokens = 6;
inline constexpr double kDraftMemory = 0.98;
// How much of a source's gain before counts after one more pass. Share. Choice. Test:
// SourceGainTest.
inline constexpr double kGainMemory = 0.9;
// Tokens for which a source that does not pay is left alone, at first and at most. Tokens. Choice:
// a vain try costs about a plain pass, so the longest pause costs 0.2 %. Test: SourceGainTest.
inline constexpr double kFirstPauseTokens = 32;
inline constexpr double kLongestPauseTokens = 512;
// Tokens after which a source that pays, but less than another, is tried again. Tokens. Choice: a
// pass with it costs some plain passes at most, less than a hundredth. Test: SourceGainTest.
inline constexpr double kTrialTokens = 512;
// Calls of an app from which its speculation is counted on, the share of them that gained less than
// what is counted on, and the most that is. Calls; share; ratio. Choice: one call in five may be
// slower than predicted before the level falls in its middle. Test: SpeculationOutlookTest.
inline constexpr size_t kOutlookCalls = 4;
inline constexpr double kOutlookQuantile = 0.2;
inline constexpr double kMostSpeedup = 8;

// --- KV of contexts (kv_demotion.h, load_learning.h)

// Chunks of a context that stay at 8 bits: the first ones, which all later tokens attend to, and
// the latest ones, which the next call attends to most. Chunks. Unrecorded. Test:
// KvDemotionTest.TheEndsOfAContextStayExact.
inline constexpr size_t kFirstExactChunks = 2;
inline constexpr size_t kLastExactChunks = 2;
// How far one load moves the costs of the next plan towards what it has shown, and how far one that
// shows nothing of recomputing moves that back to its calibration: a worker that was slow once is
// tried again in time. Shares. Unrecorded. Tests: LoadLearningTest.
inline constexpr double kLoadLearningShare = 0.25;
inline constexpr double kRecomputeForget = 0.02;
// Fewer chunks recomputed, and fewer bytes read, teach nothing: fixed costs hide the rest. Chunks;
// bytes. Choice. Tests: LoadLearningTest.
inline constexpr size_t kLeastRecomputedThatTeach = 4;
inline constexpr uint64_t kLeastReadBytesThatTeach = 1 << 20;
// Bounds of recomputing beside its calibration, so that no single odd load decides all later ones.
// Ratios. Choice. Test: LoadLearningTest.RecomputingStaysWithinBoundsOfTheCalibration.
inline constexpr double kMostRecomputeSpeedUp = 2;
inline constexpr double kMostRecomputeSlowdown = 4;

// --- Drafts of a step (draft_plan.h)

// Cumulative confidence at which a branch ends. Probability. Choice: a row is not worth less.
// Tests: DraftPlanTest, SpeculatorTest.
inline constexpr double kLeastDraftConfidence = 0.02;
// Most tokens behind the answer's last one in a tree, and most nodes that a model adds before a
// step. Tokens. Choice: bounds; trees of answers are smaller. Test: DraftPlanTest.
inline constexpr int32_t kMostDraftDepth = 32;
inline constexpr int32_t kMostModelNodes = 64;
// Places that a look-up follows. Places. Unrecorded. Test: TokenLookupTest.
inline constexpr int32_t kMostMatches = 3;
// How long a step waits for draft_worker. Ratio to what its passes are expected to take. Choice.
// Test: DraftPlanTest.
inline constexpr double kDraftPatience = 1.5;
// What computing the KV of a call's prompt may take at most before the draft model drafts, at once,
// in slices (where it cannot be afforded at once), and in windows, which makes steps longer by half
// of it at most. Shares of the time that the answer would have taken plainly so far, and the first
// and the last also of what one pass with the model's drafts has gained of late. Choice: an
// answer 20 times as long as the catch-up will probably outlast it; a long prompt with a short
// answer is left alone. Test: DraftPlanTest.
inline constexpr double kCatchUpShare = 0.25;
inline constexpr double kSlicedCatchUpShare = 0.05;
inline constexpr double kWindowCatchUpShare = 0.5;
// GrowthLimits of trees that grow while a step waits for weights: more branches than before a step,
// where each pass must pay, and more leaves in a pass. Probability; nodes; leaves. Unrecorded.
// Test: SpeculatorWindowsTest.
inline constexpr double kWindowBranch = 0.05;
inline constexpr int32_t kMostWindowNodes = 96;
inline constexpr int32_t kWindowLeaves = 4;
// KV slots for the rows of steps and for what grows meanwhile. Tokens. Choice. Test:
// SpeculatorWindowsTest.
inline constexpr int32_t kWindowSlotsAhead = 64;
// What a pass of so many rows costs where weights come from a disk and nothing was measured. Rows;
// ratio to one row. Choice: rows are computed while the pass waits. Test: DraftPlanTest.
inline constexpr int32_t kStreamedRows = 32;
inline constexpr double kStreamedRowsCost = 1.3;

// --- Power and heat (energy_ledger.h, thermal_limit.h)

// Time constant of the board's mean power, apart for while calls run and while none does. Seconds.
// Choice: some calls. Test: EnergyLedgerTest.
inline constexpr double kPowerMemoryS = 30;
// Room below the trip point from which the model steps down, what more it needs to step up again,
// and the time between two steps. Degrees Celsius; nanoseconds. Choice: a board under steady load
// comes nearer by less than this in the time that a step needs to show. Test: ThermalLimitTest.
inline constexpr double kThermalMarginCelsius = 5;
inline constexpr double kThermalHysteresisCelsius = 4;
inline constexpr int64_t kThermalStepNs = 10 * kNanosPerSecond;

// --- Asking draft_worker (model_worker/draft_client.cc)

// How long a draft may keep the target waiting, whatever it was predicted to take. Milliseconds.
// Choice. Test: model_worker_draft_client_test.
inline constexpr double kLeastDraftPatienceMs = 5;
inline constexpr double kMostDraftPatienceMs = 2000;
// How long draft_worker is left alone that is away, and one that refuses to draft. Nanoseconds.
// Choice: it restarts within a second; one that refuses has another vocabulary. Test:
// model_worker_draft_client_test.
inline constexpr int64_t kDraftAwayNs = 200 * kNanosPerMilli;
inline constexpr int64_t kDraftRefusedNs = 10 * kNanosPerSecond;
// Weight of one draft for what its passes take. Share. Unrecorded.
inline constexpr double kDraftPassWeight = 0.2;
// Tokens whose KV is computed together from which one's time is told: fewer tell what the pass
// costs. Tokens. Unrecorded.
inline constexpr uint32_t kTellingDraftTokens = 8;

}  // namespace withy::policy
