#include "offline/corpus/generator.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "offline/corpus/author.h"
#include "offline/corpus/tasks.h"

namespace withy::corpus {
namespace {

using std::string_view;

constexpr std::array<string_view, 24> kFillerTexts = {
    "You are the assistant on this phone and you help the owner with small things.",
    "Please read all of it with care before you answer.",
    "The owner has little time, so please keep the answer short.",
    "You work on the phone alone and nothing leaves it.",
    "Some of the lines may not matter for the answer at all.",
    "Take your time and look at all of the lines first.",
    "The owner trusts you and likes a clear answer.",
    "There is one right answer and it can be found in what you read.",
    "Do not add any other words to the answer.",
    "You have helped the owner with many things like this before.",
    "Be as clear as you can and do not guess.",
    "It does not matter how long the text is.",
    "The owner will see your answer on a small screen.",
    "Thank you for the help that you give every day.",
    "The names may be new to you, so copy them with care.",
    "All that you need to know is in the text.",
    "Look at the question first and then at the text.",
    "The owner likes it when the answer comes at once.",
    "Please look at the text with care before you answer the owner.",
    "You help the owner with many small things every day.",
    "All that you need for the answer can be found in the text.",
    "The owner likes a short and clear answer on the screen.",
    "Do not guess, and do not add any lines to the answer.",
    "Take your time, read the text first and then answer at once.",
};
constexpr Wordings kFiller = {"filler", kFillerTexts};

constexpr std::array<string_view, 4> kApiTexts = {
    "Answer with one call of a function from the catalogue.",
    "Choose the function from the catalogue and answer with its call.",
    "Your answer is the call of one function from the catalogue.",
    "Choose one function from the catalogue and answer with the call."};
constexpr std::array<string_view, 4> kQaTexts = {
    "Answer the question from the notes, in the form Answer: and the answer.",
    "Find the answer in the passage and write it after Answer:",
    "Read the notes and give the answer after Answer:",
    "Find the answer to the question in the notes and write it after Answer:"};
constexpr std::array<string_view, 4> kReplyTexts = {
    "Write the reply of the owner to the message, in the style that is given.",
    "Reply to the message for the owner, in the right style.",
    "Write what the owner would reply, in the style that is given.",
    "Write the reply to the message for the owner, in the right style."};
constexpr std::array<string_view, 4> kUiTexts = {
    "Answer with one action on the screen: tap(id), type(id, text) or none.",
    "Choose the action for the screen: tap(id), type(id, text) or none.",
    "Your answer is one action: tap(id), type(id, text) or none.",
    "Choose one action on the screen and answer with tap(id), type(id, text) or none."};
constexpr std::array<string_view, 4> kMathTexts = {
    "Work it out and write the result after Answer:",
    "Give the result in the form Answer: and the result.",
    "Find the result and write it after Answer:", "Work out the result and give it after Answer:"};
constexpr std::array<string_view, 4> kSummaryTexts = {
    "Write who does what and when, in the form Who: ; what: ; when:",
    "Sum up the chat in the form Who: ; what: ; when:", "Answer in the form Who: ; what: ; when:",
    "Sum up who does what and when, in the form Who: ; what: ; when:"};
constexpr std::array<Wordings, kTaskCount> kInstructions = {
    {{"api.instruction", kApiTexts},
     {"qa.instruction", kQaTexts},
     {"reply.instruction", kReplyTexts},
     {"ui.instruction", kUiTexts},
     {"math.instruction", kMathTexts},
     {"summary.instruction", kSummaryTexts}}};

// The (fixed) instruction with filler sentences before and after it.
Message SystemMessage(Author& author, Task task, int filler_count) {
  Message message{"system", "", {}};
  const int before = author.Between(0, filler_count);
  for (int i = 0; i < before; ++i) message.content += author.Say(kFiller) + " ";
  const size_t begin = message.content.size();
  message.content += author.Say(Instructions(task));
  message.fixed.push_back({begin, message.content.size()});
  for (int i = before; i < filler_count; ++i) message.content += " " + author.Say(kFiller);
  return message;
}

Message UserMessage(const std::string& context, const std::string& question) {
  Message message{"user", context, {}};
  if (!message.content.empty()) message.content += "\n";
  const size_t begin = message.content.size();
  message.content += question;
  message.fixed.push_back({begin, message.content.size()});
  return message;
}

// Appends the scene's questions as messages, all but the last with their answers. Returns the last
// answer.
std::string AddExchanges(Scene scene, std::vector<Message>& messages) {
  for (size_t i = 0; i < scene.exchanges.size(); ++i) {
    if (i > 0) messages.push_back({"assistant", scene.exchanges[i - 1].answer, {}});
    messages.push_back(UserMessage(i == 0 ? scene.context : "", scene.exchanges[i].question));
  }
  return std::move(scene.exchanges.back().answer);
}

}  // namespace

const Wordings& Instructions(Task task) { return kInstructions[static_cast<size_t>(task)]; }

Scene WriteScene(Task task, Author& author, int difficulty, int follow_ups) {
  switch (task) {
    case Task::kApi:
      return WriteApi(author, difficulty);
    case Task::kQa:
      return WriteQa(author, difficulty, follow_ups);
    case Task::kReply:
      return WriteReply(author, difficulty, follow_ups);
    case Task::kUi:
      return WriteUi(author, difficulty, follow_ups);
    case Task::kMath:
      return WriteMath(author, difficulty);
    case Task::kSummary:
      return WriteSummary(author, difficulty);
  }
  return {};
}

Spec TrainSpec() {
  return {.seed = 20261120,
          .split = Split::kTrain,
          .five_shot_percent = 15,
          .few_shot_percent = 60,
          .max_filler = 4};
}

Spec HeldOutSpec() {
  return {.seed = 20261121,
          .split = Split::kHeldOut,
          .five_shot_percent = 20,
          .few_shot_percent = 0,
          .max_filler = 4};
}

Record Generator::At(uint64_t index) const {
  return At(index, static_cast<Task>(index % kTaskCount),
            static_cast<int>(index / kTaskCount % kMaxDifficulty) + 1);
}

Record Generator::At(uint64_t index, Task task, int difficulty) const {
  uint64_t state = spec_.seed * 2 + (spec_.split == Split::kHeldOut ? 1 : 0);
  state = SplitMix(state) + index;
  Author author(SplitMix(state), spec_.split, spec_.garbled_percent);

  Record record;
  record.id = std::string(spec_.split == Split::kTrain ? "train-" : "heldout-") +
              std::to_string(spec_.seed) + "-" + std::to_string(index);
  record.task = task;
  record.difficulty = std::clamp(difficulty, kMinDifficulty, spec_.max_difficulty);
  const int roll = author.Between(0, 99);
  const bool five = roll < spec_.five_shot_percent;
  const bool few = !five && roll < spec_.five_shot_percent + spec_.few_shot_percent;
  record.shots = five ? 5 : few ? author.Between(2, 4) : 0;
  if (spec_.exact_shots > 0) record.shots = spec_.exact_shots;
  const int filler = author.Between(0, record.shots > 0 ? spec_.max_filler / 2 : spec_.max_filler);
  record.messages.push_back(SystemMessage(author, task, filler));
  for (int shot = 0; shot < record.shots; ++shot) {
    const Scene scene =
        WriteScene(task, author,
                   five && spec_.exact_shots == 0 ? author.Between(1, 2)
                                                  : author.Between(1, spec_.max_difficulty),
                   spec_.follow_ups);
    std::string answer = AddExchanges(scene, record.messages);
    record.messages.push_back({"assistant", std::move(answer), {}});
  }
  record.answer =
      AddExchanges(WriteScene(task, author, record.difficulty, spec_.follow_ups), record.messages);
  record.entities = author.TakeEntities();
  record.wordings = author.TakeWordings();
  return record;
}

}  // namespace withy::corpus
