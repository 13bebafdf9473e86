/* A C program outside the tree: says the version, and meets an error the way users do. */
#include <ckptengine/ckptengine.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const ckpt_option options[] = {{"no_such_option", "1"}};
  ckpt_engine* engine = NULL;
  ckpt_status status = ckpt_create(options, 1, &engine);
  if (status != CKPT_ERR_INVALID) {
    fprintf(stderr, "an unknown option gave status %d\n", (int)status);
    return 1;
  }
  if (strstr(ckpt_last_error(), "no_such_option") == NULL) {
    fprintf(stderr, "the error does not name the option: '%s'\n", ckpt_last_error());
    return 1;
  }
  ckpt_close(NULL);
  printf("ckptengine %s\n", ckpt_version());
  return 0;
}
