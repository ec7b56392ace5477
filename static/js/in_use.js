/** Whether somebody is at work in an element: the focus is there, or words of it are selected. */
export function isInUse(element) {
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && element.contains(selection.anchorNode);
  const focus = document.activeElement;
  return selected || (focus !== null && focus !== document.body && element.contains(focus));
}
