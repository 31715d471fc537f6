#include "formats/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "temp_folder.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  static std::string content(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  long entries() const { return std::distance(fs::directory_iterator(folder_), {}); }

  // Runs `act`, which must fail with Exit::disk, and returns its message.
  template <typename Act>
  static std::string message_of(Act act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::disk);
      EXPECT_FALSE(error.hint().empty());
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return "";
  }

  TempFolder temp_;
  fs::path folder_ = temp_.path();
};

// With a nameless temporary, where the file system has them, and with a named one.
class AtomicFileOf : public AtomicFileTest,
                     public testing::WithParamInterface<AtomicFile::Temporary> {
 protected:
  void SetUp() override {
    const int fd = ::open(folder_.c_str(), O_WRONLY | O_TMPFILE, 0600);
    if (fd < 0 && GetParam() == AtomicFile::Temporary::nameless) GTEST_SKIP() << "no such files";
    ::close(fd);
  }
};
INSTANTIATE_TEST_SUITE_P(Temporaries, AtomicFileOf,
                         testing::Values(AtomicFile::Temporary::nameless,
                                         AtomicFile::Temporary::named));

TEST_P(AtomicFileOf, TheTargetAppearsOnlyOnCommit) {
  const fs::path target = folder_ / "a.bin";
  const std::string big(3 << 20, 'x');
  {
    AtomicFile file(target, GetParam());
    file.write("head");
    file.write(big.data(), big.size());
    file.write(nullptr, 0);
    EXPECT_FALSE(fs::exists(target));
    EXPECT_EQ(fs::exists(folder_ / (".a.bin." + std::to_string(::getpid()) + ".tmp")),
              GetParam() == AtomicFile::Temporary::named);
    file.commit();
    EXPECT_THROW(file.write("late"), Bug);
    EXPECT_THROW(file.commit(), Bug);
  }
  EXPECT_EQ(content(target), "head" + big);
  EXPECT_EQ(entries(), 1);
}

TEST_P(AtomicFileOf, WithoutCommitTheOldContentStaysAndNothingElse) {
  const fs::path target = folder_ / "a.bin";
  write_file_atomically(target, "old");
  {
    AtomicFile file(target, GetParam());
    file.write("new");
  }
  EXPECT_EQ(content(target), "old");
  EXPECT_EQ(entries(), 1);
  write_file_atomically(target, "");
  EXPECT_EQ(content(target), "");
}

TEST_F(AtomicFileTest, AMissingDirectoryIsNamed) {
  const fs::path target = folder_ / "no" / "a.bin";
  const std::string message = message_of([&] { AtomicFile file(target); });
  EXPECT_NE(message.find("no/a.bin"), std::string::npos) << message;
  EXPECT_EQ(entries(), 0);
}

TEST_F(AtomicFileTest, AnUnwritableDirectoryIsRefused) {
  ::chmod(folder_.c_str(), 0555);
  constexpr uid_t kNobody = 65534;
  const int was = ::setfsuid(kNobody);  // root could write anywhere; of this thread alone
  message_of([&] { AtomicFile file(folder_ / "a.bin"); });
  ::setfsuid(static_cast<uid_t>(was));
  ::chmod(folder_.c_str(), 0700);
  EXPECT_EQ(entries(), 0);
}

TEST_F(AtomicFileTest, DevicesAndDirectoriesAreNeverReplaced) {
  const std::string message = message_of([] { AtomicFile file("/dev/null"); });
  EXPECT_NE(message.find("/dev/null: found a device"), std::string::npos) << message;
  message_of([&] { AtomicFile file(folder_); });
  message_of([&] { AtomicFile file(folder_ / ""); });
  message_of([] { AtomicFile file(""); });
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_P(AtomicFileOf, ADirectoryThatTookTheNameFailsTheCommit) {
  const fs::path target = folder_ / "a.bin";
  AtomicFile file(target, GetParam());
  file.write("x");
  fs::create_directory(target);
  message_of([&] { file.commit(); });
  EXPECT_EQ(entries(), 1);  // the directory alone
}

TEST_F(AtomicFileTest, ALinkIsFollowed) {
  fs::create_directory(folder_ / "disk");
  write_file_atomically(folder_ / "disk" / "real", "old");
  fs::create_symlink(folder_ / "disk" / "real", folder_ / "link");
  write_file_atomically(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(content(folder_ / "disk" / "real"), "new");
}

TEST_P(AtomicFileOf, ALinkPlantedAtTheTemporaryIsNotFollowed) {
  write_file_atomically(folder_ / "victim", "safe");
  fs::create_symlink(folder_ / "victim", folder_ / (".a." + std::to_string(::getpid()) + ".tmp"));
  AtomicFile file(folder_ / "a", GetParam());
  file.write("new");
  file.commit();
  EXPECT_EQ(content(folder_ / "victim"), "safe");
  EXPECT_EQ(content(folder_ / "a"), "new");
  EXPECT_EQ(entries(), 2);
}

TEST_P(AtomicFileOf, ADirectoryInThePlaceOfTheTemporaryIsRefused) {
  fs::create_directory(folder_ / (".a." + std::to_string(::getpid()) + ".tmp"));
  message_of([&] { AtomicFile(folder_ / "a", GetParam()).commit(); });
  EXPECT_EQ(entries(), 1);
}

// A file size limit is the full disk that every machine has. In a child: the limit cannot be raised
// back by everyone, and it would hit the other tests.
TEST_P(AtomicFileOf, AWriteThatDoesNotFitLeavesNothing) {
  const fs::path target = folder_ / "a.bin";
  write_file_atomically(target, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit { 100000, 100000 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int result = 1;
    try {
      AtomicFile file(target, GetParam());
      const std::string big(60000, 'x');
      file.write(big);
      result = 2;
      file.write(big);  // 40000 bytes go through: a short write, then the error
    } catch (const Error& error) {
      const bool told = std::string(error.what()).find("a.bin: write: ") != std::string::npos;
      if (result == 2 && error.code() == Exit::disk && told) result = 0;
    }
    ::_exit(result);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(content(target), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_P(AtomicFileOf, StaleTemporariesGoAndLivingOnesStay) {
  for (const char* name : {".a.bin.1.tmp", ".b.4194304.tmp", ".user.tmp", "c.12.tmp", ".12.tmp",
                           ".d.12x.tmp", ".e..tmp"}) {
    std::ofstream(folder_ / name) << "x";
  }
  fs::create_directory(folder_ / ".f.12.tmp");
  ASSERT_EQ(::mkfifo((folder_ / ".g.12.tmp").c_str(), 0600), 0);
  AtomicFile living(folder_ / "live", GetParam());
  living.write("data");
  remove_stale_temporaries(folder_);
  living.commit();
  EXPECT_EQ(content(folder_ / "live"), "data");
  EXPECT_FALSE(fs::exists(folder_ / ".a.bin.1.tmp"));
  EXPECT_FALSE(fs::exists(folder_ / ".b.4194304.tmp"));
  EXPECT_EQ(entries(), 8);  // "live" and the seven that are not ours
  remove_stale_temporaries(folder_ / "missing");
}

TEST_P(AtomicFileOf, AKilledWriterLeavesTheOldFileAndAtMostAStaleTemporary) {
  const fs::path target = folder_ / "a.bin";
  write_file_atomically(target, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(target, GetParam());
    file.write("half");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(content(target), "old");
  EXPECT_EQ(entries(), GetParam() == AtomicFile::Temporary::named ? 2 : 1);
  remove_stale_temporaries(folder_, "b.bin");
  EXPECT_EQ(entries(), GetParam() == AtomicFile::Temporary::named ? 2 : 1);
  remove_stale_temporaries(folder_, "a.bin");
  EXPECT_EQ(entries(), 1);
}

TEST_F(AtomicFileTest, DirectoriesAreMadeWithTheirParents) {
  make_directories(folder_ / "a" / "b" / "" / "c" / "");
  EXPECT_TRUE(fs::is_directory(folder_ / "a" / "b" / "c"));
  make_directories(folder_ / "a" / "b");
  make_directories(".");
  make_directories("/");
  write_file_atomically(folder_ / "file", "x");
  const std::string message = message_of([&] { make_directories(folder_ / "file" / "x"); });
  EXPECT_NE(message.find("/file: create the directory"), std::string::npos) << message;
}

TEST_F(AtomicFileTest, ADirectoryIsLockedByOneProcessAtATime) {
  const fs::path target = folder_ / "count";
  write_file_atomically(target, "0");
  constexpr int kProcesses = 4, kTimes = 25;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    for (int k = 0; k < kTimes; ++k) {
      const DirectoryLock lock(folder_);
      write_file_atomically(target, std::to_string(std::stoi(content(target)) + 1));
    }
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = 1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(content(target), std::to_string(kProcesses * kTimes));
  EXPECT_EQ(entries(), 1) << "nothing is left behind";
}

TEST_F(AtomicFileTest, ADirectoryThatIsNotThereIsGoneWithoutALock) {
  const DirectoryLock lock(folder_ / "missing");
  EXPECT_EQ(entries(), 0);
}

}  // namespace
}  // namespace ebb
