// The limit that other tests rely on is one: who passes it is killed, who does not is left alone.
#include "control_group.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ebb {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// dd takes its block as one piece of memory and fills it.
int take(const ControlGroup& group, const std::string& size) {
  return group.run({"dd", "if=/dev/zero", "of=/dev/null", "bs=" + size, "count=1", "status=none"});
}

TEST(ControlGroup, EndsWhoPassesTheLimitAndNobodyElse) {
  const ControlGroup group(32 * kMiB);
  if (!group.why().empty()) GTEST_SKIP() << group.why();
  EXPECT_EQ(take(group, "16M"), 0);
  EXPECT_GT(group.peak(), 16 * kMiB);
  EXPECT_EQ(group.kills(), 0);
  EXPECT_EQ(take(group, "100M"), -SIGKILL);
  EXPECT_EQ(group.kills(), 1);
  EXPECT_LE(group.peak(), 32 * kMiB);
}

TEST(ControlGroup, LeavesNothingBehind) {
  std::string processes;
  {
    const ControlGroup group(32 * kMiB), another(16 * kMiB);
    if (!group.why().empty()) GTEST_SKIP() << group.why();
    EXPECT_EQ(another.why(), "");
    EXPECT_EQ(take(another, "100M"), -SIGKILL);
    EXPECT_EQ(group.kills(), 0) << "each counts its own";
    processes = another.processes();
    EXPECT_TRUE(std::filesystem::exists(processes));
  }
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(processes).parent_path()));
}

}  // namespace
}  // namespace ebb
