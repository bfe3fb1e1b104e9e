// Divides the board's energy among the calls that run. Pure; fed by whoever reads the meter
// (base/sensors/energy_meter.h). A call is charged with what the whole board draws while it runs,
// idle power included, in equal shares with the calls beside it. One that yields, such as a text
// that is scored, computes only while no other runs, and is charged for that time only.
#pragma once

#include <cstdint>
#include <map>

namespace withy::policy {

class EnergyLedger {
 public:
  // `joules`: the meter's sum, which never falls; `now_ns`: steady time. Calls begin and end at the
  // reading that is fed with them.
  void Begin(uint64_t call, double joules, int64_t now_ns, bool yields = false);
  void Read(double joules, int64_t now_ns);
  // Joules that the call is charged with; 0 for one that has not begun.
  double End(uint64_t call, double joules, int64_t now_ns);

  bool idle() const { return calls_.empty(); }
  // Watts of the board while calls run, a moving mean over kPowerMemoryNs; before the first call
  // what it draws idle. 0: not known yet.
  double busy_watts() const { return busy_watts_ > 0 ? busy_watts_ : idle_watts_; }
  double watts() const { return watts_; }  // between the last two readings

 private:
  struct Charge {
    double joules = 0;
    bool yields = false;
  };
  std::map<uint64_t, Charge> calls_;  // of each that runs
  double joules_ = 0;
  int64_t read_ns_ = 0;  // 0: nothing was read yet
  double watts_ = 0;
  double busy_watts_ = 0;
  double idle_watts_ = 0;
};

}  // namespace withy::policy
