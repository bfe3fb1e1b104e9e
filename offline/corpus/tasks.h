// The six tasks of the corpus. Each writes one scene of a difficulty from 1 to 5 and has its own
// system instruction. If a context allows more than one question, the scene has up to `follow_ups`
// further ones, all different. Neighbours: one .cc file per task; generator.cc chooses the task.
#pragma once

#include "offline/corpus/author.h"
#include "offline/corpus/record.h"

namespace withy::corpus {

// Difficulty adds functions, near misses, arguments and their order.
Scene WriteApi(Author& author, int difficulty);
// Difficulty adds people, facts per person, and questions about two facts.
Scene WriteQa(Author& author, int difficulty, int follow_ups);
// Difficulty adds calendar entries, parts of the day, and people to address formally.
Scene WriteReply(Author& author, int difficulty, int follow_ups);
// Difficulty adds elements on the screen, near misses, and switches that need no change.
Scene WriteUi(Author& author, int difficulty, int follow_ups);
// Difficulty adds digits, carries, and dates and times that roll over.
Scene WriteMath(Author& author, int difficulty);
// Difficulty adds lines of chatter, refusals, and changes of mind.
Scene WriteSummary(Author& author, int difficulty);

// Writes a scene of `task`.
Scene WriteScene(Task task, Author& author, int difficulty, int follow_ups = 0);
// Wordings of the system message of `task`; each states the form of the answer.
const Wordings& Instructions(Task task);

}  // namespace withy::corpus
