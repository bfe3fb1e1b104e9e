// Task: smart replies. The owner's answer follows from the calendar, the owner's place, and the
// form of address for a contact.
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 12> kMeetTexts = {
    "can we meet on %1?",
    "shall we meet on %1?",
    "do you want to meet on %1?",
    "are you free on %1?",
    "I would like to meet you on %1.",
    "is %1 a good day to meet?",
    "could you meet me on %1?",
    "let us meet on %1.",
    "would you meet me on %1?",
    "can you meet me on %1?",
    "could we meet on %1?",
    "would you like to meet on %1?",
};
constexpr Wordings kMeet = {"reply.meet", kMeetTexts};
constexpr std::array<string_view, 4> kWhereTexts = {"where are you now?", "where are you?",
                                                    "can you tell me where you are?",
                                                    "can you tell me where you are now?"};
constexpr Wordings kWhere = {"reply.where", kWhereTexts};
constexpr std::array<string_view, 4> kArriveTexts = {
    "when will you be here?", "at what time will you be here?", "when do you arrive?",
    "at what time do you arrive?"};
constexpr Wordings kArrive = {"reply.arrive", kArriveTexts};
constexpr std::array<string_view, 4> kMessageTexts = {
    "New message from %1: %2", "%1 sends this message: %2", "Message from %1: %2",
    "New message: %1 sends %2"};
constexpr Wordings kMessage = {"reply.message", kMessageTexts};

constexpr std::array<string_view, 10> kSpots = {"gym",    "office", "station", "market", "library",
                                                "garden", "school", "museum",  "bank",   "airport"};
constexpr std::array<string_view, 12> kEvents = {"dentist visit",   "music lesson", "family dinner",
                                                 "work meeting",    "driving test", "football game",
                                                 "theatre evening", "house party",  "school trip",
                                                 "market day",      "garden work",  "hair cut"};
constexpr std::array<string_view, 2> kParts = {"morning", "evening"};

struct Entry {
  std::string when;
  std::string event;  // empty: free
};

std::vector<Entry> DrawCalendar(Author& author, int count, bool with_parts) {
  std::vector<std::string> whens;
  for (const string_view day : Weekdays()) {
    if (!with_parts) whens.emplace_back(day);
    if (with_parts) {
      for (const string_view part : kParts)
        whens.push_back(std::string(day) + " " + std::string(part));
    }
  }
  author.rng().Shuffle(whens);
  // With parts, often keep both halves of a day, so that the day alone does not decide.
  if (with_parts) {
    const std::string& first = whens[0];
    const std::string day = first.substr(0, first.find(' '));
    whens[1] = day + (first.ends_with("morning") ? " evening" : " morning");
  }
  std::vector<Entry> entries;
  for (const std::string& when : whens) {
    if (static_cast<int>(entries.size()) == count) break;
    bool known = false;
    for (const Entry& entry : entries) known = known || entry.when == when;
    if (!known)
      entries.push_back({when, author.Chance(50) ? std::string(author.Any(kEvents)) : ""});
  }
  return entries;
}

struct Contact {
  std::string name;
  bool formal = false;
};

// Writes the style to `context`: one for everybody, or from difficulty 3 on a formal and a casual
// contact. Returns the contacts it covers, the first sender first.
std::vector<Contact> WriteStyle(Author& author, int difficulty, const std::string& sender,
                                std::string& context) {
  const bool formal = author.Chance(50);
  if (difficulty < 3) {
    context += formal ? "Style: formal\n" : "Style: casual\n";
    return {{sender, formal}};
  }
  const std::string other = author.Person();
  context += "Style: formal for " + (formal ? sender : other) + ", casual for " +
             (formal ? other : sender) + "\n";
  return {{sender, formal}, {other, !formal}};
}

}  // namespace

Scene WriteReply(Author& author, int difficulty, int follow_ups) {
  const std::string sender = author.Person();
  Scene scene;
  std::vector<Contact> contacts = WriteStyle(author, difficulty, sender, scene.context);
  const std::string spot(author.Any(kSpots));
  const std::string arrival =
      std::to_string(author.Between(7, 22)) + (author.Chance(50) ? ":15" : ":45");
  scene.context += "Now: at the " + spot + ", back at " + arrival + "\nCalendar:";
  std::vector<Entry> calendar = DrawCalendar(author, difficulty + 1, difficulty >= 4);
  Entry asked =
      calendar[author.rng().Below(difficulty >= 4 ? 2 : static_cast<uint32_t>(calendar.size()))];
  author.rng().Shuffle(calendar);
  for (const Entry& entry : calendar) {
    scene.context += "\n- " + entry.when + ": " + (entry.event.empty() ? "free" : entry.event);
  }

  Contact from = contacts.front();
  do {
    const int kind = author.Between(0, 9);
    std::string text;
    Exchange exchange{"", (from.formal ? "Dear " : "Hi ") + from.name + ", "};
    if (kind < 2) {
      text = author.Say(kWhere);
      exchange.answer += "I am at the " + spot + ".";
    } else if (kind < 4) {
      text = author.Say(kArrive);
      exchange.answer += "I will be there at " + arrival + ".";
    } else {
      text = author.Say(kMeet, {asked.when});
      exchange.answer += asked.event.empty() ? asked.when + " is fine."
                                             : "sorry, I have a " + asked.event + " then.";
      std::erase_if(calendar, [&](const Entry& entry) { return entry.when == asked.when; });
    }
    exchange.question = author.Say(kMessage, {from.name, text});
    scene.exchanges.push_back(std::move(exchange));
    if (follow_ups-- <= 0 || calendar.empty()) break;
    asked = calendar[author.rng().Below(static_cast<uint32_t>(calendar.size()))];
    from = contacts.size() > 1 ? contacts[author.rng().Below(2)]
                               : Contact{author.Person(), from.formal};
  } while (true);
  return scene;
}

}  // namespace withy::corpus
