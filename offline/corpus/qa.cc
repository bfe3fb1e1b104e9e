// Task: answer from a passage of facts about several people, one of which answers the question. The
// hardest questions need two facts.
#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 4> kHomeFactTexts = {"%1 lives in %2.", "%1 has a home in %2.",
                                                       "The home of %1 is in %2.",
                                                       "The place %1 lives in is %2."};
constexpr std::array<string_view, 4> kHomeAskTexts = {
    "Where does %1 live?", "Where is the home of %1?", "In which place does %1 live?",
    "In which place is the home of %1?"};
constexpr std::array<string_view, 4> kJobFactTexts = {
    "%1 works as a %2.", "%1 has the job of a %2.", "The job of %1 is %2.",
    "%1 has a job as a %2."};
constexpr std::array<string_view, 4> kJobAskTexts = {"What is the job of %1?",
                                                     "Which job does %1 have?",
                                                     "What does %1 work as?", "Which job has %1?"};
constexpr std::array<string_view, 4> kThingFactTexts = {"%1 likes the %2.", "%1 is fond of the %2.",
                                                        "What %1 likes is the %2.",
                                                        "The thing %1 likes is the %2."};
constexpr std::array<string_view, 4> kThingAskTexts = {
    "What does %1 like?", "Which thing does %1 like?", "What is %1 fond of?",
    "Which thing is %1 fond of?"};
constexpr std::array<string_view, 4> kDayFactTexts = {
    "%1 is free on %2.", "%1 has a free day on %2.", "The free day of %1 is %2.",
    "%1 has %2 as a free day."};
constexpr std::array<string_view, 4> kDayAskTexts = {"When is %1 free?", "On which day is %1 free?",
                                                     "What is the free day of %1?",
                                                     "Which is the free day of %1?"};
constexpr std::array<string_view, 4> kNumberFactTexts = {
    "%1 has the number %2.", "The number of %1 is %2.", "%1 can be called under the number %2.",
    "%1 can be called under %2."};
constexpr std::array<string_view, 4> kNumberAskTexts = {
    "What is the number of %1?", "Which number does %1 have?",
    "Under which number can %1 be called?", "Which is the number of %1?"};
constexpr std::array<string_view, 4> kBossFactTexts = {
    "The boss of %1 is %2.", "%1 has the boss %2.", "%1 works for the boss %2.",
    "%1 has %2 as the boss."};
constexpr std::array<string_view, 4> kBossHomeTexts = {
    "Where does the boss of %1 live?", "Where is the home of the boss of %1?",
    "In which place does the boss of %1 live?", "In which place is the home of the boss of %1?"};
constexpr std::array<string_view, 8> kPassageTexts = {"Notes:",
                                                      "Here is the passage:",
                                                      "Passage:",
                                                      "My notes say:",
                                                      "Here are some notes:",
                                                      "These are my notes:",
                                                      "Here are my notes:",
                                                      "Here are the notes:"};
constexpr Wordings kPassage = {"qa.passage", kPassageTexts};

enum class FactKind { kHome, kJob, kThing, kDay, kNumber };
struct Relation {
  FactKind kind;
  Wordings fact;
  Wordings ask;
};
const std::array<Relation, 5> kRelations = {{
    {FactKind::kHome, {"qa.home.fact", kHomeFactTexts}, {"qa.home.ask", kHomeAskTexts}},
    {FactKind::kJob, {"qa.job.fact", kJobFactTexts}, {"qa.job.ask", kJobAskTexts}},
    {FactKind::kThing, {"qa.thing.fact", kThingFactTexts}, {"qa.thing.ask", kThingAskTexts}},
    {FactKind::kDay, {"qa.day.fact", kDayFactTexts}, {"qa.day.ask", kDayAskTexts}},
    {FactKind::kNumber, {"qa.number.fact", kNumberFactTexts}, {"qa.number.ask", kNumberAskTexts}},
}};
constexpr Wordings kBossFact = {"qa.boss.fact", kBossFactTexts};
constexpr Wordings kBossHome = {"qa.boss.ask", kBossHomeTexts};

std::string DrawFact(Author& author, FactKind kind) {
  switch (kind) {
    case FactKind::kHome:
      return author.Place();
    case FactKind::kJob:
      return std::string(author.Any(Jobs()));
    case FactKind::kThing:
      return author.Thing().Join(" ");
    case FactKind::kDay:
      return std::string(author.Any(Weekdays()));
    case FactKind::kNumber:
      return std::to_string(author.Between(1000, 9999));
  }
  return "";
}

std::string JoinShuffled(Author& author, std::vector<std::string> facts) {
  author.rng().Shuffle(facts);
  std::string passage = author.Say(kPassage);
  for (const std::string& fact : facts) passage += " " + fact;
  return passage;
}

// Everyone has a home; the question leads from a person via the boss to the boss's home. With
// follow-ups there may be more people to ask about.
Scene WriteTwoHops(Author& author, int follow_ups) {
  const int people_count = follow_ups > 0 ? 2 * author.rng().Between(2, 4) : 4;
  const std::vector<std::string> people = author.Different(people_count, &Author::Person);
  std::vector<std::string> facts;
  std::vector<std::string> homes;
  for (const std::string& person : people) {
    homes.push_back(author.Place());
    facts.push_back(author.Say(kRelations[0].fact, {person, homes.back()}));
  }
  const size_t half = people.size() / 2;
  for (size_t i = 0; i < half; ++i)
    facts.push_back(author.Say(kBossFact, {people[i], people[half + i]}));
  Scene scene;
  scene.context = JoinShuffled(author, std::move(facts));
  std::vector<size_t> open(half);
  std::iota(open.begin(), open.end(), 0);
  do {
    const auto asked = open.begin() + author.rng().Below(static_cast<uint32_t>(open.size()));
    scene.exchanges.push_back(
        {author.Say(kBossHome, {people[*asked]}), "Answer: " + homes[half + *asked]});
    open.erase(asked);
  } while (follow_ups-- > 0 && !open.empty());
  return scene;
}

}  // namespace

Scene WriteQa(Author& author, int difficulty, int follow_ups) {
  constexpr std::array<int, 5> kPeople = {2, 2, 3, 4, 4};
  constexpr std::array<int, 5> kFacts = {1, 2, 2, 2, 3};
  if (difficulty == kMaxDifficulty && author.Chance(40)) return WriteTwoHops(author, follow_ups);
  const size_t level = static_cast<size_t>(difficulty - 1);
  const std::vector<std::string> people = author.Different(kPeople[level], &Author::Person);
  std::vector<size_t> relations = {0, 1, 2, 3, 4};
  author.rng().Shuffle(relations);
  relations.resize(static_cast<size_t>(kFacts[level]));

  struct Fact {
    size_t relation;
    size_t person;
    std::string value;
  };
  // The first question is about the first relation.
  const size_t asked = author.rng().Below(static_cast<uint32_t>(people.size()));
  std::vector<Fact> facts;
  std::vector<std::string> sentences;
  for (const size_t r : relations) {
    for (size_t p = 0; p < people.size(); ++p) {
      facts.push_back({r, p, DrawFact(author, kRelations[r].kind)});
      sentences.push_back(author.Say(kRelations[r].fact, {people[p], facts.back().value}));
    }
  }
  Scene scene;
  scene.context = JoinShuffled(author, std::move(sentences));
  size_t next = asked;
  do {
    const Fact& fact = facts[next];
    scene.exchanges.push_back({author.Say(kRelations[fact.relation].ask, {people[fact.person]}),
                               "Answer: " + fact.value});
    facts.erase(facts.begin() + static_cast<ptrdiff_t>(next));
    if (follow_ups-- <= 0 || facts.empty()) break;
    next = author.rng().Below(static_cast<uint32_t>(facts.size()));
  } while (true);
  return scene;
}

}  // namespace withy::corpus
