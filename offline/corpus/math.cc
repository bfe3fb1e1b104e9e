// Task: arithmetic and dates: sums, weekdays, months, dates and clock times. Hard questions carry,
// roll over, or contain an irrelevant number.
#include <array>
#include <string>
#include <string_view>

#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 8> kPlusTexts = {"What is %1 plus %2?",
                                                   "How much is %1 plus %2?",
                                                   "Add %2 to %1.",
                                                   "What is the sum of %1 and %2?",
                                                   "Please add %2 to %1.",
                                                   "I want the sum of %1 and %2.",
                                                   "How much is the sum of %1 and %2?",
                                                   "I want to add %2 to %1."};
constexpr Wordings kPlus = {"math.plus", kPlusTexts};
constexpr std::array<string_view, 8> kMinusTexts = {"What is %1 minus %2?",
                                                    "How much is %1 minus %2?",
                                                    "Take %2 from %1.",
                                                    "What is left when you take %2 from %1?",
                                                    "Please take %2 from %1.",
                                                    "How much is left of %1 after you take %2?",
                                                    "How much is left when you take %2 from %1?",
                                                    "I want to take %2 from %1."};
constexpr Wordings kMinus = {"math.minus", kMinusTexts};
constexpr std::array<string_view, 4> kGetsTexts = {
    "%1 has %2 %4s and gets %3 more. How many are there?",
    "There are %2 %4s, and %1 adds %3 more. How many are there now?",
    "%1 had %2 %4s and got %3 more. How many are there now?",
    "%1 has %2 %4s and adds %3 more. How many are there now?"};
constexpr Wordings kGets = {"math.gets", kGetsTexts};
constexpr std::array<string_view, 4> kLosesTexts = {
    "%1 has %2 %4s and sells %3. How many are left?",
    "There are %2 %4s, and %1 takes %3. How many are left now?",
    "%1 had %2 %4s and sold %3. How many are left?",
    "%1 has %2 %4s and sells %3. How many are left now?"};
constexpr Wordings kLoses = {"math.loses", kLosesTexts};
constexpr std::array<string_view, 4> kDayAfterTexts = {
    "Which day is %1 days after %2?", "It is %2. Which day will it be in %1 days?",
    "What day is %1 days after %2?", "It is %2. What day will it be in %1 days?"};
constexpr Wordings kDayAfter = {"math.day_after", kDayAfterTexts};
constexpr std::array<string_view, 4> kDayBeforeTexts = {
    "Which day is %1 days before %2?", "It is %2. Which day was it %1 days ago?",
    "What day is %1 days before %2?", "It is %2. What day was it %1 days ago?"};
constexpr Wordings kDayBefore = {"math.day_before", kDayBeforeTexts};
constexpr std::array<string_view, 4> kMonthAfterTexts = {
    "Which month is %1 months after %2?", "It is %2. Which month will it be in %1 months?",
    "What month is %1 months after %2?", "It is %2. What month will it be in %1 months?"};
constexpr Wordings kMonthAfter = {"math.month_after", kMonthAfterTexts};
constexpr std::array<string_view, 4> kDateAfterTexts = {
    "Which date is %1 days after %2?", "It is %2. Which date will it be in %1 days?",
    "What date is %1 days after %2?", "It is %2. What date will it be in %1 days?"};
constexpr Wordings kDateAfter = {"math.date_after", kDateAfterTexts};
constexpr std::array<string_view, 4> kTimeAfterTexts = {
    "What time is %1 minutes after %2?", "It is %2. What time will it be in %1 minutes?",
    "Which time is %1 minutes after %2?", "It is %2. Which time will it be in %1 minutes?"};
constexpr Wordings kTimeAfter = {"math.time_after", kTimeAfterTexts};
constexpr std::array<string_view, 4> kBetweenTexts = {
    "How many minutes are there from %1 to %2?",
    "It starts at %1 and ends at %2. How many minutes is that?",
    "How many minutes are there between %1 and %2?",
    "It starts at %1 and ends at %2. How many minutes are there?"};
constexpr Wordings kBetween = {"math.between", kBetweenTexts};
constexpr std::array<string_view, 8> kAsideTexts = {
    "%1 lives at number %2.",        "The bill of %1 has the number %2.",
    "%1 has page %2 open.",          "The ticket of %1 has the number %2.",
    "The room of %1 is number %2.",  "%1 sits at table %2.",
    "The table of %1 is number %2.", "%1 has the ticket number %2."};
constexpr Wordings kAside = {"math.aside", kAsideTexts};

constexpr std::array<int, 12> kMonthDays = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

std::string Clock(int minutes) {
  const int minute = minutes % 60;
  return std::to_string(minutes / 60 % 24) + (minute < 10 ? ":0" : ":") + std::to_string(minute);
}

Scene Ask(std::string question, const std::string& answer) {
  return {"", {{std::move(question), "Answer: " + answer}}};
}

Scene Plus(Author& author, int a, int b) {
  const std::string first = std::to_string(a);
  const std::string second = std::to_string(b);
  if (author.Chance(60)) return Ask(author.Say(kPlus, {first, second}), std::to_string(a + b));
  const std::string person = author.Person();
  return Ask(author.Say(kGets, {person, first, second, author.Any(Nouns())}),
             std::to_string(a + b));
}

// a - b with a >= b.
Scene Minus(Author& author, int a, int b) {
  const std::string first = std::to_string(a);
  const std::string second = std::to_string(b);
  if (author.Chance(60)) return Ask(author.Say(kMinus, {first, second}), std::to_string(a - b));
  const std::string person = author.Person();
  return Ask(author.Say(kLoses, {person, first, second, author.Any(Nouns())}),
             std::to_string(a - b));
}

Scene PlusOrMinus(Author& author, int low, int high, int second_low, int second_high) {
  const int a = author.Between(low, high);
  const int b = author.Between(second_low, second_high);
  if (author.Chance(50)) return Plus(author, a, b);
  return a >= b ? Minus(author, a, b) : Minus(author, b, a);
}

Scene Weekday(Author& author, int most) {
  const int days = author.Between(2, most);
  const int day = author.Between(0, 6);
  const std::string count = std::to_string(days);
  const string_view name = Weekdays()[static_cast<size_t>(day)];
  if (author.Chance(50)) {
    return Ask(author.Say(kDayAfter, {count, name}),
               std::string(Weekdays()[static_cast<size_t>((day + days) % 7)]));
  }
  return Ask(author.Say(kDayBefore, {count, name}),
             std::string(Weekdays()[static_cast<size_t>((day + 14 - days) % 7)]));
}

Scene Month(Author& author) {
  const int months = author.Between(2, 6);
  const int month = author.Between(0, 11);
  return Ask(
      author.Say(kMonthAfter, {std::to_string(months), Months()[static_cast<size_t>(month)]}),
      std::string(Months()[static_cast<size_t>((month + months) % 12)]));
}

// `rolls`: the date is in the next month.
Scene Date(Author& author, bool rolls) {
  const size_t month = author.rng().Below(12);
  const int last = kMonthDays[month];
  const int days = author.Between(2, 9);
  const int day = rolls ? author.Between(last - days + 1, last) : author.Between(1, last - days);
  const std::string start = std::string(Months()[month]) + " " + std::to_string(day);
  const size_t end_month = rolls ? (month + 1) % 12 : month;
  const int end_day = rolls ? day + days - last : day + days;
  return Ask(author.Say(kDateAfter, {std::to_string(days), start}),
             std::string(Months()[end_month]) + " " + std::to_string(end_day));
}

// Both times are multiples of `step` minutes.
Scene Time(Author& author, int step) {
  const int start = author.Between(7 * 60 / step, 22 * 60 / step) * step;
  const int minutes = author.Between(1, 55 / step) * step;
  return Ask(author.Say(kTimeAfter, {std::to_string(minutes), Clock(start)}),
             Clock(start + minutes));
}

Scene Minutes(Author& author) {
  const int start = author.Between(7 * 12, 21 * 12) * 5;
  const int minutes = author.Between(2, 11) * 5;
  return Ask(author.Say(kBetween, {Clock(start), Clock(start + minutes)}), std::to_string(minutes));
}

Scene WithAside(Author& author, Scene scene) {
  const std::string person = author.Person();
  scene.context = author.Say(kAside, {person, std::to_string(author.Between(2, 99))});
  return scene;
}

}  // namespace

Scene WriteMath(Author& author, int difficulty) {
  const int roll = author.Between(0, 9);
  switch (difficulty) {
    case 1:
      return roll < 6 ? PlusOrMinus(author, 2, 9, 2, 9) : Weekday(author, 4);
    case 2:
      if (roll < 5) return PlusOrMinus(author, 10, 99, 2, 9);
      return roll < 8 ? Weekday(author, 6) : Month(author);
    case 3:
      if (roll < 4) return PlusOrMinus(author, 10, 99, 10, 99);
      return roll < 7 ? Time(author, 15) : Date(author, false);
    case 4:
      if (roll < 4) return WithAside(author, PlusOrMinus(author, 10, 99, 10, 99));
      if (roll < 7) return Time(author, 5);
      return roll < 9 ? WithAside(author, Date(author, false)) : Minutes(author);
    default:
      if (roll < 4) return WithAside(author, PlusOrMinus(author, 100, 399, 10, 99));
      if (roll < 6) return Date(author, true);
      return roll < 8 ? WithAside(author, Time(author, 5)) : Minutes(author);
  }
}

}  // namespace withy::corpus
