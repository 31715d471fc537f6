// Who started the process, and what is said where the others cannot be reached.
#include "comm/launcher.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

const std::vector<const char*> kVariables = {"OMPI_COMM_WORLD_RANK",
                                             "OMPI_COMM_WORLD_SIZE",
                                             "PMI_RANK",
                                             "PMI_SIZE",
                                             "PMIX_RANK",
                                             "SLURM_STEP_NUM_TASKS",
                                             "SLURM_NTASKS_PER_NODE",
                                             "SLURM_LOCALID",
                                             "SLURM_STEP_NUM_NODES",
                                             "MPI_LOCALNRANKS",
                                             "MPI_LOCALRANKID",
                                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                                             "OMPI_COMM_WORLD_LOCAL_RANK"};

class LauncherTest : public ::testing::Test {
 protected:
  LauncherTest() { clear(); }
  ~LauncherTest() override { clear(); }
  static void clear() {
    for (const char* name : kVariables) unsetenv(name);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }

  // What a copy of the probe says in a folder of its own.
  std::string probe(int& code) const {
    fs::copy_file(EBB_PROBE, folder_.path() / "probe", fs::copy_options::overwrite_existing);
    const std::string command = (folder_.path() / "probe").string() + " exchange 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    std::string said;
    for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) said += static_cast<char>(c);
    code = WEXITSTATUS(pclose(pipe));
    return said;
  }
  TempFolder folder_;
};

TEST_F(LauncherTest, IsKnownByWhatItSets) {
  EXPECT_EQ(launcher().kind, Launcher::Kind::none);
  EXPECT_EQ(launcher().size, 1);
  set("PMI_RANK", "2");
  EXPECT_EQ(launcher().kind, Launcher::Kind::none) << "a rank of how many?";
  set("PMI_SIZE", "4");
  EXPECT_EQ(launcher().kind, Launcher::Kind::mpich);
  EXPECT_EQ(launcher().rank, 2);
  EXPECT_EQ(launcher().size, 4);
  set("OMPI_COMM_WORLD_RANK", "0");
  set("OMPI_COMM_WORLD_SIZE", "3");
  EXPECT_EQ(launcher().kind, Launcher::Kind::openmpi) << "its mpiexec inside a job of Slurm's";
  clear();
  set("PMIX_RANK", "1");
  set("SLURM_STEP_NUM_TASKS", "2");
  EXPECT_EQ(launcher().kind, Launcher::Kind::openmpi);
}

// Messages are cut otherwise where there is no network between ranks: all have to think alike.
TEST_F(LauncherTest, SaysWhoIsOnThisHost) {
  set("PMI_RANK", "3");
  set("PMI_SIZE", "4");
  EXPECT_FALSE(launcher().one_host) << "the launcher does not say";
  EXPECT_FALSE(launcher().local_rank.has_value());
  set("MPI_LOCALNRANKS", "2");
  set("MPI_LOCALRANKID", "1");
  EXPECT_FALSE(launcher().one_host);
  EXPECT_EQ(launcher().local, 2);
  EXPECT_EQ(launcher().local_rank, 1);
  set("MPI_LOCALNRANKS", "4");
  EXPECT_TRUE(launcher().one_host);
  set("MPI_LOCALRANKID", "4");
  EXPECT_FALSE(launcher().local_rank.has_value()) << "of four";
}

TEST_F(LauncherTest, SlurmSaysHowManyNodesThereAre) {
  set("PMIX_RANK", "0");
  set("SLURM_STEP_NUM_TASKS", "2");
  set("SLURM_NTASKS_PER_NODE", "2");  // at most
  EXPECT_FALSE(launcher().one_host);
  set("SLURM_STEP_NUM_NODES", "2");
  EXPECT_FALSE(launcher().one_host);
  set("SLURM_STEP_NUM_NODES", "1");
  EXPECT_TRUE(launcher().one_host);
}

TEST_F(LauncherTest, NonsenseInTheEnvironmentIsRefused) {
  for (const char* rank : {"", "x", "1x", "-1", "4", "99999999999"}) {
    set("PMI_RANK", rank);
    set("PMI_SIZE", "4");
    try {
      launcher();
      ADD_FAILURE() << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find("PMI_RANK="), std::string::npos) << error.what();
      EXPECT_NE(error.hint().find("unset PMI_RANK"), std::string::npos) << error.hint();
    }
  }
}

TEST_F(LauncherTest, WhoIsAloneIsToldHowToStartRanks) {
  try {
    open_peers(launcher(), {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(error.hint().find("mpiexec -n"), std::string::npos) << error.hint();
  }
}

TEST_F(LauncherTest, APluginThatIsMissingOrOfAnotherBuildIsAnErrorThatSaysWhatToDo) {
  set("PMI_RANK", "0");
  set("PMI_SIZE", "2");
  int code = 0;
  std::string said = probe(code);
  EXPECT_EQ(code, 2);
  EXPECT_NE(said.find("has no libebb_mpich.so (looked in "), std::string::npos) << said;
  EXPECT_NE(said.find("apt install mpich libmpich-dev"), std::string::npos) << said;

  const fs::path plugin = folder_.path() / "libebb_mpich.so";
  std::ofstream(plugin) << "not a library";
  said = probe(code);
  EXPECT_EQ(code, 2);
  EXPECT_NE(said.find("cannot be loaded"), std::string::npos) << said;

  fs::copy_file("/lib/x86_64-linux-gnu/libz.so.1", plugin, fs::copy_options::overwrite_existing);
  said = probe(code);
  EXPECT_EQ(code, 2);
  EXPECT_NE(said.find("offers 'nothing'"), std::string::npos) << said;
}

TEST_F(LauncherTest, TheProgramLinksNoMpi) {
  std::stringstream bytes;
  bytes << std::ifstream(EBB_BINARY, std::ios::binary).rdbuf();
  ASSERT_GT(bytes.str().size(), 100'000u);
  for (const char* library : {"libmpich.so", "libmpi.so", "libucp.so", "MPI_Init"}) {
    EXPECT_EQ(bytes.str().find(library), std::string::npos) << library;
  }
}

}  // namespace
}  // namespace ebb
