// Task: summarise a chat in a fixed form, "Who: ...; what: ...; when: ...": somebody takes over a
// task, perhaps after a refusal, and the day may change.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 8> kAskTexts = {"Who can %1 the %2 on %3?",
                                                  "Can somebody %1 the %2 on %3?",
                                                  "We need to %1 the %2 on %3.",
                                                  "Who wants to %1 the %2 on %3?",
                                                  "Somebody should %1 the %2 on %3.",
                                                  "On %3 we need to %1 the %2.",
                                                  "Somebody should %1 the %2 for us on %3.",
                                                  "Who can %1 the %2 for us on %3?"};
constexpr Wordings kAsk = {"summary.ask", kAskTexts};
constexpr std::array<string_view, 8> kAcceptTexts = {
    "I will do it.",      "I can do it.",        "Let me do it.",
    "I will do that.",    "Yes, I can do that.", "That is for me, I will do it.",
    "Yes, I will do it.", "Let me do that."};
constexpr Wordings kAccept = {"summary.accept", kAcceptTexts};
constexpr std::array<string_view, 8> kRefuseTexts = {
    "I cannot do it, sorry.", "Sorry, I cannot.",
    "No, I have no time.",    "I have no time, sorry.",
    "Sorry, not me.",         "No, I cannot do it.",
    "Sorry, I cannot do it.", "No, sorry, I have no time."};
constexpr Wordings kRefuse = {"summary.refuse", kRefuseTexts};
constexpr std::array<string_view, 8> kMoveTexts = {
    "Can we make it %1 instead?", "Let us make it %1 instead.",   "%1 would be better.",
    "I want to move it to %1.",   "Can we move it to %1?",        "It has to be %1 instead.",
    "Let us move it to %1.",      "Can we move it to %1 instead?"};
constexpr Wordings kMove = {"summary.move", kMoveTexts};
constexpr std::array<string_view, 4> kAgreeTexts = {"Yes, that is fine.", "That is fine with me.",
                                                    "Fine.", "Yes, fine with me."};
constexpr Wordings kAgree = {"summary.agree", kAgreeTexts};
constexpr std::array<string_view, 16> kChatterTexts = {"What a lovely day it is.",
                                                       "The weather is good today.",
                                                       "I had a good time in %1.",
                                                       "Good morning to all of you.",
                                                       "I am back from %1.",
                                                       "The train to %1 was late.",
                                                       "How are you all?",
                                                       "I like the house in %1.",
                                                       "It is cold in %1 today.",
                                                       "We had a lovely time.",
                                                       "The market in %1 was good.",
                                                       "Good to hear from you.",
                                                       "The weather in %1 is lovely.",
                                                       "I had a lovely day in %1.",
                                                       "Good morning from %1.",
                                                       "What a good day it is in %1."};
constexpr Wordings kChatter = {"summary.chatter", kChatterTexts};
constexpr std::array<string_view, 8> kQuestionTexts = {"Summarise the chat.",
                                                       "Please summarise this chat.",
                                                       "Sum up the chat.",
                                                       "Please sum up this chat.",
                                                       "What did they settle in this chat?",
                                                       "Tell me what they settle in the chat.",
                                                       "Tell me what they did settle in this chat.",
                                                       "Please tell me what they settle."};
constexpr Wordings kQuestion = {"summary.question", kQuestionTexts};
constexpr std::array<string_view, 4> kChatTexts = {
    "Chat:", "The chat:", "This is the chat:", "Here is the chat:"};
constexpr Wordings kChat = {"summary.chat", kChatTexts};

std::string Line(const std::string& speaker, const std::string& text) {
  return "- " + speaker + ": " + text;
}

// Inserts `count` lines of chatter at random places in `lines`.
void AddChatter(Author& author, int count, const std::vector<std::string>& people,
                std::vector<std::string>& lines) {
  for (int i = 0; i < count; ++i) {
    const std::string& speaker = people[author.rng().Below(static_cast<uint32_t>(people.size()))];
    const std::string place = author.Place();
    const size_t where = author.rng().Below(static_cast<uint32_t>(lines.size() + 1));
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(where),
                 Line(speaker, author.Say(kChatter, {place})));
  }
}

}  // namespace

Scene WriteSummary(Author& author, int difficulty) {
  constexpr std::array<int, 5> kRefusals = {0, 0, 1, 1, 2};
  constexpr std::array<int, 5> kChatterLines = {0, 1, 1, 2, 2};
  const size_t level = static_cast<size_t>(difficulty - 1);
  const bool moves = difficulty >= 4 && author.Chance(70);
  const int refusals = kRefusals[level];
  const std::vector<std::string> people = author.Different(2 + refusals, &Author::Person);
  const Pair task = author.Command();
  std::string day(author.Any(Weekdays()));

  std::vector<std::string> lines = {
      Line(people[0], author.Say(kAsk, {task.first, task.second, day}))};
  for (int i = 0; i < refusals; ++i)
    lines.push_back(Line(people[static_cast<size_t>(i) + 2], author.Say(kRefuse)));
  lines.push_back(Line(people[1], author.Say(kAccept)));
  if (moves) {
    std::string later;
    do {
      later = author.Any(Weekdays());
    } while (later == day);
    day = later;
    lines.push_back(Line(people[0], author.Say(kMove, {day})));
    lines.push_back(Line(people[1], author.Say(kAgree)));
  }
  AddChatter(author, kChatterLines[level], people, lines);

  Scene scene;
  scene.context = author.Say(kChat);
  for (const std::string& line : lines) scene.context += "\n" + line;
  scene.exchanges.push_back({author.Say(kQuestion), "Who: " + people[1] + "; what: " + task.first +
                                                        " the " + task.second + "; when: " + day});
  return scene;
}

}  // namespace withy::corpus
