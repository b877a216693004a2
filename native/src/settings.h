/* The memory of the card that cuCtxSetLimit takes. */
#ifndef PARTAGE_SETTINGS_H
#define PARTAGE_SETTINGS_H


/* In a child after fork: the parent's objects do not exist, and its lock is free. */
void settings_forget(void);

#endif
