#include "check.h"

int main() {
  for (const Test& test : tests()) {
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
}
