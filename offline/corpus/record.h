// A record of the corpus: one prompt of an on-device assistant with its one correct answer.
// Neighbours: generator.h makes records, json.h prints them, bench/ sends them to the service.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace withy::corpus {

enum class Task { kApi, kQa, kReply, kUi, kMath, kSummary };
inline constexpr int kTaskCount = 6;
inline constexpr std::array<std::string_view, kTaskCount> kTaskNames = {"api", "qa",   "reply",
                                                                        "ui",  "math", "summary"};

inline std::string_view TaskName(Task task) { return kTaskNames[static_cast<size_t>(task)]; }

// Training and held-out records share no template wording and no entity.
enum class Split { kTrain, kHeldOut };

inline constexpr int kMinDifficulty = 1;
inline constexpr int kMaxDifficulty = 5;

// Bytes [begin, end) of a message's content that prompt pruning must keep.
struct Span {
  size_t begin = 0;
  size_t end = 0;
};

struct Message {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  std::vector<Span> fixed;
};

struct Record {
  std::string id;  // "<split>-<seed>-<index>"
  Task task = Task::kApi;
  int difficulty = kMinDifficulty;  // of the last question
  int shots = 0;                    // worked examples before the last question
  std::vector<Message> messages;    // ends with the user's last question
  std::string answer;               // the exact answer

  // Used entities (names) and wordings ("<list>/<index>"), for checking the split.
  std::vector<std::string> entities;
  std::vector<std::string> wordings;
};

}  // namespace withy::corpus
