#include "engine/runtime/expert_slots.hpp"

#include <stdexcept>

#include "fixtures/catch.hpp"

namespace kalibri::runtime {
namespace {

constexpr std::int32_t kNone = ExpertSlots::kNone;

TEST_CASE("the expert that was unwanted longest makes room, one in use or being read never") {
  ExpertSlots slots(10, 3);
  for (const std::int32_t expert : {4, 5, 6}) slots.let_go(slots.claim(expert));
  const std::int32_t four = slots.find(4);  // 5 is now the one unwanted longest
  REQUIRE(four != kNone);
  const std::int32_t seven = slots.claim(7);
  CHECK(slots.find(5) == kNone);
  slots[seven].n_parts = 1;
  slots.let_go(seven);  // still being read
  const std::int32_t eight = slots.claim(8);
  CHECK(slots.find(6) == kNone);
  CHECK(slots.claim(9) == kNone);  // 4 and 8 are in use, 7 is being read
  slots.let_go(four);
  CHECK(slots.claim(9) == four);
  CHECK(slots.find(8) == eight);
}

TEST_CASE("an expert that could not be read is remembered as long as somebody waits for it, and then read anew") {
  ExpertSlots slots(4, 1);
  const std::int32_t slot = slots.claim(2);
  slots[slot].n_parts = 2;
  CHECK_FALSE(slots.arrived(slot, std::make_exception_ptr(std::runtime_error("no"))));
  CHECK(slots.find(2) == slot);  // a second one waits
  CHECK(slots.arrived(slot, nullptr));
  CHECK(slots[slot].error != nullptr);
  slots.let_go(slot);
  CHECK(slots[slot].error != nullptr);
  slots.let_go(slot);
  CHECK(slots.find(2) == kNone);
  CHECK(slots.claim(2) == slot);
  CHECK(slots[slot].error == nullptr);
}

TEST_CASE("a layer that is left is empty, but for what is in use") {
  ExpertSlots slots(4, 2);
  const std::int32_t used = slots.claim(0);
  slots.let_go(slots.claim(1));
  CHECK_FALSE(slots.clear());
  CHECK(slots.find(1) == kNone);
  slots.let_go(used);
  CHECK(slots.clear());
  CHECK(slots.find(0) == kNone);
}

}  // namespace
}  // namespace kalibri::runtime
