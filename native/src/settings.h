/* What cuCtxSetLimit takes of the card. */
#ifndef PARTAGE_SETTINGS_H
#define PARTAGE_SETTINGS_H


/* In a child after fork: what the parent had is not there, and its lock is free. */
void settings_forget(void);

#endif
